//! `doctor`: finds out why pods of a node have no network.
//!
//! doctor reads the state of the node into a [`Node`] once. Then one pure function for each subject
//! derives findings from it.

mod bridges;
mod capabilities;
mod chain;
mod cluster_routes;
mod configuration;
mod disk;
mod dropped;
mod edit;
mod finding;
mod firewall;
mod forwarding;
mod host_ports;
mod kernel;
mod keys;
mod kube_proxy;
mod leases;
mod leftovers;
mod localnet;
mod managers;
mod outbound;
mod page;
mod pods;
mod programs;
mod ranges;
mod remnants;
mod runtimes;
mod stages;
mod unreturned;
mod uplinks;

use node::Node;
use node::Part::{self, Cache, Cluster, Configuration, Firewall, Kernel, Leases, Links, Policies};
use runtime::Directories;

use self::finding::Finding;
use self::page::Entry;
pub use self::page::Page;

/// Reads the node, and returns the findings of all checks as a page for the operator. Changes
/// nothing.
pub fn doctor(directories: &Directories) -> Page {
    let mut node = Node::read(directories);
    node.try_packets(&stages::stages(&node));
    Page::of(judge(&node))
}

/// Returns the findings of all checks, in the order of `SUBJECTS`.
fn judge(node: &Node) -> Vec<Entry> {
    let is_read = |part: &Part| node.unread.iter().all(|(unread, _)| unread != part);
    let mut entries = Vec::new();
    for (subject, judge, parts) in SUBJECTS {
        if parts.iter().all(is_read) {
            let findings = judge(node).into_iter();
            entries.extend(findings.map(|finding| Entry { subject, finding }));
        }
    }
    entries
}

fn unread(node: &Node) -> Vec<Finding> {
    let unread = node.unread.iter();
    let finding = |(_, reason): &(Part, String)| {
        Finding::warning(format!("not read: {reason}"))
            .impact("Checks that depend on it are skipped. root can read everything.")
    };
    unread.map(finding).collect()
}

type Check = fn(&Node) -> Vec<Finding>;

/// The checks. Each has its subject in one word, its function, and the parts of the node that the
/// function needs. A check is skipped if one of these parts could not be read.
const SUBJECTS: &[(&str, Check, &[Part])] = &[
    ("doctor", unread, &[]),
    ("conflist", configuration::judge, &[Configuration]),
    ("plugin", programs::judge, &[]),
    ("chain", chain::judge, &[]),
    ("runtime", runtimes::judge, &[]),
    ("key", keys::judge, &[]),
    ("capability", capabilities::judge, &[]),
    ("kernel", kernel::judge, &[Kernel]),
    ("status", kernel::refusals, &[Firewall]),
    ("sysctl", forwarding::judge, &[Links]),
    ("firewall", firewall::judge, &[Firewall, Cache]),
    (
        "localhost",
        localnet::judge,
        &[Policies, Firewall, Links, Cache],
    ),
    (
        "remnant",
        remnants::judge,
        &[Firewall, Cache, Leases, Links, Configuration],
    ),
    ("outbound", outbound::judge, &[Links, Cache, Firewall]),
    ("kube-proxy", kube_proxy::judge, &[Firewall, Links]),
    ("bridge", bridges::judge, &[Links, Cache]),
    ("mtu", bridges::mtus, &[Links]),
    ("pod", pods::judge, &[Links, Cache]),
    ("uplink", uplinks::judge, &[Links]),
    ("cluster", cluster_routes::judge, &[Cluster, Links]),
    ("manager", managers::judge, &[Links]),
    ("range", ranges::judge, &[Links, Leases]),
    ("lease", leases::judge, HOLDERS),
    ("element", leases::elements, HOLDERS),
    ("leftover", leftovers::judge, HOLDERS),
    ("hostport", host_ports::judge, &[Firewall]),
    ("device", unreturned::judge, &[]),
    ("disk", disk::judge, &[]),
];

/// The parts of the node that show which attachment owns a resource, and whether the attachment is
/// live.
const HOLDERS: &[Part] = &[Leases, Cache, Links, Firewall];

#[cfg(test)]
mod tests {
    //! Fictitious nodes for tests of the checks.

    use base64::prelude::{BASE64_STANDARD, Engine as _};
    use netlink::{Link, LinkKind};
    use serde_json::{Value, json};

    use super::finding::Level;
    use super::*;
    use host_local::Holder;
    use node::{Attached, File, Lease};

    pub fn levels(findings: &[Finding]) -> Vec<Level> {
        findings.iter().map(|it| it.level).collect()
    }

    /// Returns a node with these configuration files.
    pub fn node(files: &[(&str, &str)]) -> Node {
        let files = files
            .iter()
            .map(|(name, text)| File::parse(name, text.as_bytes()));
        let configuration = node::Configuration {
            directory: "/etc/cni/net.d".into(),
            files: files.collect(),
            ..node::Configuration::default()
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
            mtu: 1500,
            is_up: true,
            is_operational: true,
            ..Link::default()
        }
    }

    pub fn lease(network: &str, address: &str, container: &str) -> Lease {
        let interface = "eth0".parse().unwrap();
        Lease {
            network: network.to_owned(),
            address: address.parse().unwrap(),
            holder: Some(Holder {
                container: container.parse().unwrap(),
                interface: Some(interface),
            }),
            path: format!("/var/lib/cni/networks/{network}/{address}").into(),
            since: None,
        }
    }

    /// Returns a live attachment of which only network, container and interface are known.
    pub fn attached(network: &str, container: &str) -> Attached {
        attached_by("", network, container)
    }

    /// Returns the attachment of [`attached`], with `list` as the configuration that its ADD used.
    pub fn attached_by(list: &str, network: &str, container: &str) -> Attached {
        remembered(list, [network, container], &Value::Null)
    }

    /// Returns the attachment of [`attached_by`], with this address in its result.
    pub fn attached_at(address: &str, list: &str, names: [&str; 2]) -> Attached {
        let result = json!({"cniVersion": "1.1.0", "ips": [{"address": address}]});
        remembered(list, names, &result)
    }

    fn remembered(list: &str, [network, container]: [&str; 2], result: &Value) -> Attached {
        let entry = json!({
            "kind": "cniCacheV1", "containerId": container, "ifName": "eth0", "result": result,
            "networkName": network, "config": BASE64_STANDARD.encode(list),
        });
        let entry: runtime::Entry = serde_json::from_value(entry).unwrap();
        Attached {
            attachment: entry.attachment().unwrap(),
            entry,
            is_alive: true,
            since: None,
        }
    }

    #[test]
    fn of_what_cannot_be_read_nothing_is_said_but_that() {
        let subjects = |unread: &[Part]| {
            let reason = "operation not permitted";
            let unread = unread.iter().map(|it| (*it, reason.to_owned()));
            let findings = judge(&Node {
                unread: unread.collect(),
                ..node(&[])
            });
            let subjects: Vec<_> = findings.iter().map(|it| it.subject).collect();
            subjects
        };
        assert_eq!(subjects(&[]), ["conflist", "kernel", "firewall"]);
        assert_eq!(subjects(&[Firewall]), ["doctor", "conflist", "kernel"]);
        let most = [Configuration, Kernel, Cache];
        assert_eq!(subjects(&most), ["doctor"; 3]);
    }
}
