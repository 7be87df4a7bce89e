//! Checks for conflicts about ports of the host: a port is forwarded to two pods, or a process of
//! the host listens on a port that is forwarded to a pod.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use itertools::Itertools as _;
use nft::IpVersion;
use node::{Node, Socket};
use portmap::HostPort;

use super::finding::{Finding, or_ok};

/// Checks for each port that is forwarded to a pod whether it is also forwarded to another pod, or
/// a process of the host listens on it.
pub fn judge(node: &Node) -> Vec<Finding> {
    let held = node.firewall.elements.iter();
    let held = held.filter_map(|it| Some((it.port?.port, it.owner.as_str())));
    let held: Vec<_> = held.collect();
    let findings = twice(&held).chain(listened(node, &held));
    // A port has one element in `nf_tables` for each IP family or address of the host. The message
    // counts the port only once.
    let ports = held.iter().map(|(it, owner)| (it.protocol, it.port, owner));
    let ports = ports.unique().count();
    let ok = || format!("ports forwarded to pods: {ports}, each to one");
    or_ok(findings, (ports > 0).then(ok))
}

/// Finds a port that is forwarded to one pod for a single address of the host, and to another pod
/// for all addresses.
fn twice(held: &[(HostPort, &str)]) -> impl Iterator<Item = Finding> {
    let pairs = held.iter().array_combinations();
    let same = pairs.filter(|[one, other]| one.1 != other.1 && is_same_as(&other.0, &one.0));
    same.map(|[(port, owner), (_, holder)]| {
        let message = format!("{} is forwarded to {owner} and to {holder}", port.name());
        Finding::problem(message)
            .impact("The destination address decides which of them receives a connection.")
            .fix(format!("nft list table inet {}", portmap::TABLE))
    })
}

/// Finds a process of the node that listens on a port that is forwarded to a pod.
fn listened(node: &Node, held: &[(HostPort, &str)]) -> Vec<Finding> {
    let mut findings = BTreeMap::new();
    for (port, owner) in held {
        let mut sockets = node.sockets.iter().filter(|it| shadows(port, it));
        // Podman's helper conmon only reserves podman's ports. It receives no packets on them, so
        // it is no conflict.
        if let Some(socket) = sockets.find(|it| it.process.as_deref() != Some("conmon")) {
            let name = port.name();
            let finding = shadowed(&name, owner, socket);
            findings.entry(name).or_insert(finding);
        }
    }
    findings.into_values().collect()
}

fn shadowed(name: &str, owner: &str, socket: &Socket) -> Finding {
    let process = socket.process.as_deref();
    let process = process.unwrap_or("a process of the node");
    let (at, impact) = match socket.address {
        it if it.is_unspecified() => {
            let impact = "It no longer receives packets from other hosts.";
            (String::new(), impact)
        }
        it if it.is_loopback() => {
            let impact =
                "It no longer receives packets: those of the node itself go to the pod, too.";
            (format!(" at {it}"), impact)
        }
        it => (format!(" at {it}"), "It no longer receives packets."),
    };
    let message = format!("{name} is forwarded to {owner}, but {process} listens on it{at}");
    let fix = format!("ss -lnp 'sport = :{}'", socket.port);
    Finding::warning(message).impact(impact).fix(fix)
}

/// Returns whether the host forwards packets for `socket` to a pod, because `port` is forwarded.
fn shadows(port: &HostPort, socket: &Socket) -> bool {
    let of_family = socket.address.is_ipv4() == (port.version == IpVersion::V4);
    let address = match (socket.address, port.address) {
        // A socket of `::` may receive IPv4, too, so it matches ports of both families.
        (IpAddr::V6(Ipv6Addr::UNSPECIFIED), _) => true,
        // portmap does not forward packets to `::1`, because the pod could not answer.
        (IpAddr::V6(Ipv6Addr::LOCALHOST), _) => false,
        (_, None) => of_family,
        (heard, Some(_)) if heard.is_unspecified() => of_family,
        (heard, Some(address)) => heard == address,
    };
    (port.protocol, port.port) == (socket.protocol, socket.port) && address
}

/// Returns whether one packet may match both ports.
fn is_same_as(one: &HostPort, other: &HostPort) -> bool {
    let addresses = one.address.zip(other.address);
    let key = |it: &HostPort| (it.version, it.protocol, it.port);
    key(one) == key(other) && addresses.is_none_or(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{levels, node};
    use super::*;
    use node::OwnedElement;
    use portmap::Forward;

    fn held(owner: &str, address: Option<[u8; 4]>, port: u16) -> OwnedElement {
        let pod = [10, 1, 0, 2].into();
        OwnedElement {
            table: portmap::TABLE,
            owner: owner.to_owned(),
            port: Some(Forward {
                port: HostPort {
                    version: IpVersion::V4,
                    address: address.map(Into::into),
                    protocol: 6,
                    port,
                },
                pod,
                container_port: 80,
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
    fn port_that_a_process_listens_on_is_reported_once() {
        let mut node = node(&[]);
        node.firewall.elements = vec![held("a", None, 22), held("a", Some([192, 0, 2, 1]), 22)];
        let socket = |process: &str, protocol| Socket {
            protocol,
            address: [0, 0, 0, 0].into(),
            port: 22,
            process: Some(process.to_owned()),
        };
        node.sockets = vec![socket("conmon", 6), socket("sshd", 17)];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.sockets.push(socket("sshd", 6));
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Warning]);
        assert_eq!(
            findings[0].message,
            "tcp port 22 is forwarded to a, but sshd listens on it"
        );
    }

    #[test]
    fn listener_matters_where_it_would_hear_what_goes_to_the_pod() {
        let of = |address: Option<&str>, version, heard: &str| {
            let port = HostPort {
                version,
                address: address.map(|it| it.parse().unwrap()),
                protocol: 6,
                port: 8080,
            };
            let socket = Socket {
                protocol: 6,
                address: heard.parse().unwrap(),
                port: 8080,
                process: None,
            };
            shadows(&port, &socket)
        };
        let (v4, v6) = (IpVersion::V4, IpVersion::V6);
        for (address, version, heard, expected) in [
            (None, v4, "0.0.0.0", true),
            (None, v4, "127.0.0.1", true),
            (None, v4, "192.0.2.1", true),
            (None, v4, "::", true),
            (None, v4, "2001:db8::1", false),
            (None, v4, "::1", false),
            (None, v6, "2001:db8::1", true),
            (None, v6, "::1", false),
            (None, v6, "0.0.0.0", false),
            (Some("192.0.2.1"), v4, "0.0.0.0", true),
            (Some("192.0.2.1"), v4, "192.0.2.1", true),
            (Some("192.0.2.1"), v4, "192.0.2.2", false),
            (Some("192.0.2.1"), v4, "127.0.0.1", false),
            (Some("192.0.2.1"), v4, "::", true),
            (Some("2001:db8::1"), v6, "0.0.0.0", false),
        ] {
            assert_eq!(
                of(address, version, heard),
                expected,
                "{address:?} {version:?} {heard}"
            );
        }
    }

    #[test]
    fn address_that_a_process_listens_on_is_reported() {
        let mut node = node(&[]);
        node.firewall.elements = vec![held("a", None, 22)];
        node.sockets = vec![Socket {
            protocol: 6,
            address: [127, 0, 0, 1].into(),
            port: 22,
            process: None,
        }];
        let finding = &judge(&node)[0];
        assert!(
            finding.message.ends_with("listens on it at 127.0.0.1"),
            "{finding:?}"
        );
        assert!(finding.impact.contains("the node itself"), "{finding:?}");
    }

    #[test]
    fn port_of_both_families_is_counted_once() {
        let mut node = node(&[]);
        let mut other = held("a", None, 22);
        if let Some(forward) = &mut other.port {
            forward.port.version = IpVersion::V6;
            forward.pod = Ipv6Addr::LOCALHOST.into();
        }
        node.firewall.elements = vec![held("a", None, 22), other, held("a", None, 80)];
        let message = "ports forwarded to pods: 2, each to one";
        assert_eq!(judge(&node)[0].message, message);
    }
}
