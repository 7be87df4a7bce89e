//! The node's pod CIDRs, for which `usePodCidr` stands.
//!
//! host-local reads them from a file, and reports what is wrong with it when it is asked for
//! STATUS: what makes no sense is left out here.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use cni::json;
use ipnetwork::IpNetwork;
use runtime::{Conflist, PluginConfig};
use serde_json::{Map, Value};

/// Those of each file that a plugin of the list names.
pub(super) fn of(list: &Conflist) -> BTreeMap<PathBuf, Vec<IpNetwork>> {
    let files = list.plugins.iter().filter_map(PluginConfig::ipam);
    let files = files.filter_map(file_of);
    files.map(|file| (file.clone(), read(file))).collect()
}

/// The file that this section stands for; `None` where it names its subnets itself.
pub(super) fn file_of(ipam: &Map<String, Value>) -> Option<PathBuf> {
    let text = |key| json::value(ipam, key).and_then(Value::as_str);
    let file = text("podCidrFile").filter(|it| !it.is_empty());
    (text("subnet") == Some("usePodCidr")).then(|| file.unwrap_or(DEFAULT_FILE).into())
}

fn read(file: PathBuf) -> Vec<IpNetwork> {
    // A pipe in its place would hold this up.
    let text = file.is_file().then(|| fs::read_to_string(file));
    parse(&text.and_then(Result::ok).unwrap_or_default())
}

/// CIDRs between white space or commas, or the values of flannel's variables.
fn parse(text: &str) -> Vec<IpNetwork> {
    let of_node = text.lines().filter_map(|line| match line.split_once('=') {
        None => Some(line),
        Some((key, value)) => VARIABLES.contains(&key.trim()).then_some(value),
    });
    let words = of_node.flat_map(|it| it.split(|c: char| c.is_whitespace() || c == ','));
    let networks = words.filter_map(|it| it.trim().parse::<IpNetwork>().ok());
    // flannel names the node's own address.
    let networks = networks.filter_map(|it| IpNetwork::new(it.network(), it.prefix()).ok());
    networks.collect()
}

const VARIABLES: [&str; 2] = ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"];

/// That of host-local.
const DEFAULT_FILE: &str = "/run/flannel/subnet.env";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_flannels_variables_are_read() {
        let of = |text: &str| {
            parse(text)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let both = ["10.244.1.0/24", "fd00:244:1::/64"];
        assert_eq!(of("10.244.1.0/24,fd00:244:1::/64\n"), both);
        assert_eq!(
            of(
                "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
                FLANNEL_IPV6_SUBNET=fd00:244:1::1/64\n"
            ),
            both
        );
        assert!(of("").is_empty());
    }
}
