//! Reads the node's pod CIDRs from a file that another program writes.

use std::path::Path;

use cni::Error;
use ipnetwork::IpNetwork;

use crate::read;

/// Returns the path of the file with the node's pod CIDRs; `None` if `subnet` is not `usePodCidr`.
/// `file` is the value of the key `podCidrFile`. If it is empty, the path is
/// `/run/flannel/subnet.env`.
pub fn file_of<'a>(subnet: &str, file: &'a str) -> Option<&'a Path> {
    let file = if file.is_empty() { DEFAULT_FILE } else { file };
    (subnet == USE_POD_CIDR).then(|| Path::new(file))
}

/// Reads the CIDRs in the file at `path`, separated by white space or commas. The file may also be
/// flannel's `subnet.env`; the function then reads its variables `FLANNEL_SUBNET` and
/// `FLANNEL_IPV6_SUBNET`. Flannel writes the node's own address with the prefix length, so the
/// function clears the host bits.
///
/// # Errors
/// - Code 11: the file cannot be read. The program that writes the file may not have started yet.
/// - Code 7: the file contains no CIDR, or text that is not a CIDR.
pub fn read(path: &Path) -> Result<Vec<IpNetwork>, Error> {
    let text = read::named(path).map_err(|error| {
        Error::TryAgain(format!(
            "read podCidrFile {}, which should contain the node's pod CIDRs or flannel's FLANNEL_SUBNET: {error}",
            path.display()
        ))
    })?;
    parse(&text).map_err(|reason| {
        Error::invalid("ipam.podCidrFile", format!("{}: {reason}", path.display()))
    })
}

/// Returns the CIDRs in `text`, a file's content in one of the formats that [`read()`] accepts.
///
/// # Errors
/// `text` contains no CIDR, or another word in the place of a CIDR.
pub fn parse(text: &str) -> Result<Vec<IpNetwork>, String> {
    let is_environment = text.contains('=');
    let values: Vec<_> = if is_environment {
        text.lines().filter_map(subnet_of_flannel).collect()
    } else {
        vec![text]
    };
    let is_separator = |c: char| c.is_whitespace() || c == ',';
    let words = values.iter().flat_map(|value| value.split(is_separator));
    let networks = words
        .filter(|word| !word.is_empty())
        .map(network)
        .collect::<Result<Vec<_>, _>>()?;
    match (networks.is_empty(), is_environment) {
        (false, _) => Ok(networks),
        (true, true) => Err("neither FLANNEL_SUBNET nor FLANNEL_IPV6_SUBNET is set".into()),
        (true, false) => Err("it is empty; it should contain CIDRs such as 10.244.1.0/24".into()),
    }
}

fn subnet_of_flannel(line: &str) -> Option<&str> {
    let (key, value) = line.trim().split_once('=')?;
    let is_subnet = ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"].contains(&key.trim());
    is_subnet.then_some(value)
}

fn network(word: &str) -> Result<IpNetwork, String> {
    let parsed = word.parse::<IpNetwork>();
    let network = parsed.ok().filter(|_| word.contains('/'));
    let masked = network.and_then(|it| IpNetwork::new(it.network(), it.prefix()).ok());
    masked.ok_or_else(|| format!("{word:?} is not a CIDR"))
}

/// Value of `subnet` that stands for the node's pod CIDRs, as in the Kubernetes documentation.
pub(crate) const USE_POD_CIDR: &str = "usePodCidr";

/// Default of `podCidrFile`: the file to which flannel writes its subnet.
const DEFAULT_FILE: &str = "/run/flannel/subnet.env";

#[cfg(test)]
mod tests {
    use super::*;

    fn cidrs(text: &str) -> Vec<String> {
        parse(text)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn plain_lists_and_flannels_environment_are_read() {
        let both = ["10.244.1.0/24", "fd00:244:1::/64"];
        assert_eq!(cidrs("10.244.1.0/24,fd00:244:1::/64\n"), both);
        assert_eq!(cidrs(" 10.244.1.0/24\n\nfd00:244:1::/64"), both);
        let flannel = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
                       FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:1::1/64\n\
                       FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        assert_eq!(cidrs(flannel), both);
    }

    #[test]
    fn file_without_cidr_says_what_it_should_hold() {
        for (text, reason) in [
            ("", "it is empty"),
            ("10.244.1.0", "\"10.244.1.0\" is not a CIDR"),
            ("10.244.1.0/24 x", "\"x\" is not a CIDR"),
            ("FLANNEL_MTU=1450\n", "neither FLANNEL_SUBNET"),
            ("FLANNEL_SUBNET=", "neither FLANNEL_SUBNET"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
    }

    #[test]
    fn missing_file_is_named_and_may_come() {
        let error = read(Path::new("/nonexistent/subnet.env")).unwrap_err();
        assert_eq!(error.code(), 11);
        let text = error.to_string();
        assert!(
            text.contains("/nonexistent/subnet.env") && text.contains("FLANNEL_SUBNET"),
            "{text}"
        );
    }
}
