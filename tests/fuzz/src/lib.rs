//! Common parts of the targets: a request as bytes.

use attach::{Addressing, Topology, asked_mac, derived_mac};
use cni::{AddRequest, AddResult, Attachment, Document, Network, SearchPath, SpecVersion};

/// Splits the input into lines `CNI_ARGS=…` and, after an empty line, standard input.
pub fn split(input: &[u8]) -> Option<(&str, &[u8])> {
    let end = input.windows(2).position(|it| it == b"\n\n")?;
    let variables = str::from_utf8(&input[..end]).ok()?;
    Some((variables, &input[end + 2..]))
}

/// Returns the value of a variable in the lines.
pub fn variable<'a>(variables: &'a str, name: &str) -> Option<&'a str> {
    let pairs = variables.lines().filter_map(|line| line.split_once('='));
    pairs
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| value)
        .last()
}

/// Returns an ADD for a sandbox, if a plugin would accept the request.
pub fn add_request(input: &[u8]) -> Option<AddRequest> {
    let (variables, stdin) = split(input)?;
    let args = variable(variables, "CNI_ARGS")
        .unwrap_or_default()
        .to_owned();
    let versions = &SpecVersion::ALL;
    let document = Document::decode(stdin.to_vec()).ok()?;
    let network = Network::parse(document, SearchPath::default(), versions).ok()?;
    let attachment = Attachment {
        network: network.name.clone(),
        container: "c1".parse().ok()?,
        interface: "eth0".parse().ok()?,
    };
    let netns = "/run/netns/c1".into();
    Some(AddRequest {
        attachment,
        netns,
        args,
        network,
        prev_result: None,
    })
}

/// Reads the configuration of a plugin that connects a sandbox, and derives from it what its ADD
/// would.
pub fn read_topology<T: Topology>(input: &[u8]) {
    let Some(request) = add_request(input) else {
        return;
    };
    if let Ok(args) = request.args() {
        drop(asked_mac(&request.network, &args));
    }
    let Ok(config) = T::parse(&request.network) else {
        return;
    };
    // A lease that the IPAM plugin may return.
    if let Some(lease) = lease(&request.network)
        && let Ok(addressing) = Addressing::leased(config.gateway(), &lease, 1500)
    {
        derived_mac(&addressing.ips, &request.attachment);
    }
}

/// Returns `lease` of the configuration, a key of these targets only.
fn lease(network: &Network) -> Option<AddResult> {
    #[derive(serde::Deserialize)]
    struct Lease {
        lease: serde_json::Value,
    }
    let document: Lease = network.quiet_config().ok()?;
    cni::result::read(document.lease, network.version, "lease").ok()
}
