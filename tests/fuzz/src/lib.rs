//! Common parts of the targets: a request as bytes.

use cni::{AddRequest, Attachment, Document, Network, SearchPath, SpecVersion};

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
