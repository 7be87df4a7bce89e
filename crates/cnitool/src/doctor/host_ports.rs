//! Ports of the host that two hold.

use std::collections::BTreeMap;

use super::finding::{Finding, Level};
use crate::node::{HostPort, Node};

/// Of each port that leads to a pod.
pub fn judge(node: &Node) -> Vec<Finding> {
    let held = node.firewall.elements.iter();
    let held: Vec<_> = held
        .filter_map(|it| Some((it.port?, it.owner.as_str())))
        .collect();
    let mut findings = twice(&held);
    findings.extend(listened(node, &held));
    if findings.is_empty() && !held.is_empty() {
        let found = format!("ports that lead to pods: {}, each to one", held.len());
        findings.push(Finding::ok(SUBJECT, found));
    }
    findings
}

/// One pod has the port of a single address, and another that of all.
fn twice(held: &[(HostPort, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (place, (one, owner)) in held.iter().enumerate() {
        let later = held.iter().skip(place + 1);
        let same = later.filter(|(other, holder)| holder != owner && other.is_same_as(one));
        findings.extend(same.map(|(_, holder)| {
            Finding::problem(
                SUBJECT,
                format!("{} leads to {owner} and to {holder}", one.name()),
            )
            .means("Which of them hears a client depends on the address that it asks.")
            .mend("nft list table inet cni-portmap")
        }));
    }
    findings
}

/// A process of the node waits for what goes to a pod.
fn listened(node: &Node, held: &[(HostPort, &str)]) -> Vec<Finding> {
    let mut told = BTreeMap::new();
    for (port, owner) in held {
        let of_port = |protocol, number| (protocol, number) == (port.protocol, port.port);
        let mut sockets = node
            .sockets
            .iter()
            .filter(|it| of_port(it.protocol, it.port));
        // It keeps podman's ports from others, and listens to nothing.
        if let Some(socket) = sockets.find(|it| it.process.as_deref() != Some("conmon")) {
            let process = socket.process.as_deref().unwrap_or("a process of the node");
            let name = port.name();
            told.entry(name.clone()).or_insert_with(|| {
                let found = format!("{name} leads to {owner}, and {process} listens on it");
                Finding::new(Level::Warning, SUBJECT, found)
                    .means("The process hears nobody from elsewhere any more.")
                    .mend(format!("ss -lnp 'sport = :{}'", port.port))
            });
        }
    }
    told.into_values().collect()
}

impl HostPort {
    /// Some packet is for both.
    fn is_same_as(&self, other: &Self) -> bool {
        let address = match (self.address, other.address) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        let family = self.to.0.is_ipv4() == other.to.0.is_ipv4();
        (self.protocol, self.port) == (other.protocol, other.port) && address && family
    }
}

const SUBJECT: &str = "hostport";

#[cfg(test)]
mod tests {
    use super::super::tests::{levels, node};
    use super::*;
    use crate::node::{Held, Socket};

    fn held(owner: &str, address: Option<[u8; 4]>, port: u16) -> Held {
        let pod = [10, 1, 0, 2].into();
        Held {
            table: "cni-portmap",
            owner: owner.to_owned(),
            port: Some(HostPort {
                address: address.map(Into::into),
                protocol: 6,
                port,
                to: (pod, 80),
            }),
            address: Some(pod),
        }
    }

    #[test]
    fn port_of_one_address_and_of_all_is_held_twice() {
        for (address, port, owner, level) in [
            (Some([192, 0, 2, 1]), 8080, "b", Level::Problem),
            (Some([192, 0, 2, 1]), 8080, "a", Level::Ok),
            (Some([192, 0, 2, 1]), 8081, "b", Level::Ok),
        ] {
            let mut node = node(&[]);
            node.firewall.elements = vec![held("a", None, 8080), held(owner, address, port)];
            assert_eq!(levels(&judge(&node)), [level], "{port} {owner}");
        }
    }

    #[test]
    fn port_that_a_process_listens_on_is_told_once() {
        let mut node = node(&[]);
        node.firewall.elements = vec![held("a", None, 22), held("a", Some([192, 0, 2, 1]), 22)];
        let socket = |process: &str, protocol| Socket {
            protocol,
            port: 22,
            process: Some(process.to_owned()),
        };
        node.sockets = vec![socket("conmon", 6), socket("sshd", 17)];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.sockets.push(socket("sshd", 6));
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Warning]);
        assert_eq!(
            findings[0].found,
            "tcp port 22 leads to a, and sshd listens on it"
        );
    }
}
