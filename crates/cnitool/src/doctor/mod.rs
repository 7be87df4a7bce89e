//! `doctor`: why the pods of a node have no network.
//!
//! A [`Node`] is read once; then each subject judges it by a function of its own, from a node to
//! findings, which asks nobody else.

mod bridges;
mod capabilities;
mod configuration;
mod disk;
mod finding;
mod firewall;
mod forwarding;
mod host_ports;
mod kernel;
mod keys;
mod kube_proxy;
mod leases;
mod managers;
mod page;
mod programs;
mod range;
mod ranges;

use self::finding::Finding;
pub use self::page::Page;
use crate::node::Node;
use crate::settings::Settings;

/// Looks at the node, and changes nothing.
pub fn doctor(settings: &Settings) -> Page {
    Page::of(judge(&Node::read(settings)))
}

/// All findings, those of one level in the order of their subjects.
fn judge(node: &Node) -> Vec<Finding> {
    SUBJECTS.iter().flat_map(|subject| subject(node)).collect()
}

/// What could not be read has no findings, which is not to say that all is well there.
fn unread(node: &Node) -> Vec<Finding> {
    let unread = node.unread.iter();
    let finding = |reason: &String| {
        Finding::warning("doctor", format!("not looked at: {reason}"))
            .means("What depends on it is not judged. Everything can be read by root.")
    };
    unread.map(finding).collect()
}

const SUBJECTS: &[fn(&Node) -> Vec<Finding>] = &[
    unread,
    configuration::judge,
    programs::judge,
    keys::judge,
    capabilities::judge,
    kernel::judge,
    forwarding::judge,
    firewall::judge,
    kube_proxy::judge,
    bridges::judge,
    managers::judge,
    ranges::judge,
    leases::judge,
    host_ports::judge,
    disk::judge,
];

#[cfg(test)]
mod tests {
    //! Nodes that are made up, for the judgements.

    use base64::prelude::{BASE64_STANDARD, Engine as _};
    use netlink::{Link, LinkKind};
    use serde_json::json;

    use super::finding::Level;
    use super::*;
    use crate::node::{Attached, Configuration, File, Lease};

    pub fn levels(findings: &[Finding]) -> Vec<Level> {
        findings.iter().map(|it| it.level).collect()
    }

    /// With these files of this content.
    pub fn node(files: &[(&str, &str)]) -> Node {
        let files = files
            .iter()
            .map(|(name, text)| File::parse(name, text.as_bytes()));
        let configuration = Configuration {
            directory: "/etc/cni/net.d".into(),
            files: files.collect(),
            ..Configuration::default()
        };
        Node {
            configuration,
            ..Node::default()
        }
    }

    pub fn link(index: u32, name: &str) -> Link {
        Link {
            index,
            name: name.to_owned(),
            kind: LinkKind::Physical,
            mac: None,
            mtu: 1500,
            is_up: true,
            is_operational: true,
            is_promiscuous: false,
            master: None,
            peer: None,
            peer_namespace: None,
            alias: None,
            port: None,
            bridge_vlans: None,
            routes_localnet: false,
            ipv6: None,
        }
    }

    pub fn lease(network: &str, address: &str, container: &str) -> Lease {
        let interface = "eth0".parse().unwrap();
        Lease {
            network: network.to_owned(),
            address: address.parse().unwrap(),
            holder: Some((container.parse().unwrap(), Some(interface))),
            path: format!("/var/lib/cni/networks/{network}/{address}").into(),
            since: None,
        }
    }

    /// An attachment that lives, of which nothing but its name is known.
    pub fn attached(network: &str, container: &str) -> Attached {
        attached_by("", network, container)
    }

    /// As [`attached`], made by this list.
    pub fn attached_by(list: &str, network: &str, container: &str) -> Attached {
        let entry = json!({
            "kind": "cniCacheV1", "containerId": container, "ifName": "eth0",
            "networkName": network, "config": BASE64_STANDARD.encode(list),
        });
        let entry: crate::cache::Entry = serde_json::from_value(entry).unwrap();
        Attached {
            attachment: entry.attachment().unwrap(),
            entry,
            is_alive: true,
            since: None,
        }
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let findings = judge(&Node {
            unread: vec!["nf_tables: operation not permitted".to_owned()],
            ..Node::default()
        });
        let [first, ..] = findings.as_slice() else {
            panic!("nothing is found");
        };
        assert_eq!(first.level, Level::Warning);
        assert!(
            first.found.ends_with("operation not permitted"),
            "{first:?}"
        );
    }
}
