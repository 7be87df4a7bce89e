//! Checks that bridges exist, are up, have the gateway's address and free ports, and have the same
//! MTU as their ports and uplinks.

use std::collections::BTreeMap;

use attach::{MAX_PORTS, is_in_the_way};
use ipnetwork::IpNetwork;
use netlink::{Address, Link, LinkKind};
use node::{Attached, Node, Range, Source, bridge_of};
use runtime::Conflist;
use upkeep::UnknownPort;

use super::edit;
use super::finding::{Finding, quoted, some_of};

/// Finds missing bridges of live attachments, and faults of each existing bridge of a network.
pub fn judge(node: &Node) -> Vec<Finding> {
    let (live, strange) = (live(node), UnknownPort::all(node));
    let gone = live.iter().filter(|it| node.link_called(it.0).is_none());
    let mut findings: Vec<_> = gone.map(deleted).collect();
    for name in node.configuration.bridges() {
        let Some(bridge) = node.link_called(name) else {
            continue;
        };
        let before = findings.len();
        findings.extend(kind(node, bridge));
        findings.extend(ports(node, bridge));
        findings.extend(others_addresses(node, bridge));
        let attached = live.get(name).map_or(&[][..], Vec::as_slice);
        findings.extend(gateways(node, bridge, attached));
        let strange = strange.iter().filter(|it| it.bridge == bridge.name);
        findings.extend(strange.map(unknown_port));
        if findings.len() == before {
            let ports = node.ports(bridge.index).count();
            let found = format!("{name}: {ports} of {MAX_PORTS} ports, MTU {}", bridge.mtu);
            findings.push(Finding::ok(found));
        }
    }
    findings
}

/// Finds bridges with another MTU than their ports, or with a larger MTU than an uplink.
pub fn mtus(node: &Node) -> Vec<Finding> {
    let bridges = node.configuration.bridges().into_iter();
    let bridges = bridges.filter_map(|it| node.link_called(it));
    let findings = bridges.flat_map(|it| {
        let ports = port_mtus(node, it).into_iter();
        ports.chain(uplink_mtus(node, it))
    });
    findings.collect()
}

/// Returns the live attachments, by the name of the bridge that their ADD used.
fn live(node: &Node) -> BTreeMap<String, Vec<&Attached>> {
    let mut live = BTreeMap::<_, Vec<_>>::new();
    for attached in node.alive() {
        let network = attached.network(&node.configuration);
        let plugins = network.iter().flat_map(Conflist::all_plugins);
        for bridge in plugins.filter_map(|it| Some(bridge_of(&it)?.to_owned())) {
            live.entry(bridge).or_default().push(attached);
        }
    }
    live
}

fn deleted((name, attached): (&String, &Vec<&Attached>)) -> Finding {
    let owners = some_of(attached.iter().map(|it| it.attachment.owner()));
    let message = format!("{name} does not exist, so these pods have no network: {owners}");
    let impact = "The next ADD creates the bridge, but does not add the ports of these pods: recreate the pods.";
    let finding = Finding::problem(message).impact(impact);
    finding.fix("cnitool ps")
}

fn kind(node: &Node, bridge: &Link) -> Option<Finding> {
    let (name, word) = (&bridge.name, quoted(&bridge.name));
    if bridge.kind != LinkKind::Bridge {
        let mut sources = node.configuration.sources();
        let source = sources.find(|it| it.bridge() == Some(name))?;
        let impact = "A network is configured to attach pods to it, so every ADD fails. Choose another \
             name for the bridge: another program may use the link.";
        let finding = Finding::problem(format!("{name} is no bridge")).impact(impact);
        return Some(finding.fix(edit::open(&source.place())));
    }
    (!bridge.is_up).then(|| {
        Finding::problem(format!("{name} is down"))
            .impact("Its pods reach nothing.")
            .fix(format!("ip link set {word} up"))
    })
}

fn ports(node: &Node, bridge: &Link) -> Option<Finding> {
    let ports = node.ports(bridge.index).count();
    let message = format!("{} has {ports} of {MAX_PORTS} ports", bridge.name);
    let finding = if ports >= MAX_PORTS {
        let impact = "A Linux bridge cannot have more, so every ADD fails. Run fewer pods here.";
        Finding::problem(message).impact(impact)
    } else {
        let impact = "It is nearly full. When it is full, every ADD fails.";
        Finding::warning(message).impact(impact)
    };
    let fix = format!("ip link show master {}", quoted(&bridge.name));
    (ports * 10 >= MAX_PORTS * 9).then(|| finding.fix(fix))
}

fn unknown_port(port: &UnknownPort<'_>) -> Finding {
    let impact = "Neither a limit nor a MAC check holds for it. If nobody added it on purpose, a pod with \
         CAP_NET_ADMIN and without a user namespace of its own may have.";
    let fix = format!("ip -details link show {}", quoted(port.name));
    Finding::warning(port.to_string()).impact(impact).fix(fix)
}

/// Returns the plugins that make this bridge the gateway of their pods. Leaves out networks in a
/// VLAN: their gateway's address is on the VLAN's link.
fn routed<'n>(node: &'n Node, bridge: &'n Link) -> impl Iterator<Item = Source<'n>> {
    let sources = node.configuration.sources();
    let of_bridge = sources.filter(|it| it.bridge() == Some(bridge.name.as_str()));
    of_bridge.filter(|it| it.is_gateway() && !it.has_vlan())
}

/// Finds an address on the bridge that conflicts with the gateway's address, so ADD fails.
fn others_addresses(node: &Node, bridge: &Link) -> Option<Finding> {
    let of_bridge: Vec<_> = node.addresses_of(bridge.index).collect();
    let mut refusing = routed(node, bridge).filter(|it| !it.plugin.is_set("forceAddress"));
    refusing.find_map(|source| {
        let ranges = Range::all_of(source);
        let gateways: Vec<_> = ranges.iter().filter_map(Range::gateway).collect();
        let (of_gateways, others): (Vec<&Address>, _) = of_bridge
            .iter()
            .partition(|it| gateways.contains(&it.address));
        let is_missing = |it: &&IpNetwork| of_gateways.iter().all(|found| found.address != **it);
        let (gateway, other) = gateways.iter().filter(is_missing).find_map(|gateway| {
            let other = others.iter().find(|it| is_in_the_way(it, gateway))?;
            Some((gateway, other.address))
        })?;
        let (name, network) = (&bridge.name, source.name());
        let message = format!("{name} has {other}, but network {network} needs {gateway} there");
        let finding = Finding::problem(message);
        if is_needed(node, bridge, other) {
            let impact = "Every ADD of the network fails, which STATUS does not detect. Other pods \
                 or another network use the other address: give this network a bridge of its own.";
            return Some(finding.impact(impact).fix(edit::open(&source.place())));
        }
        let impact = "Every ADD of the network fails, which STATUS does not detect.";
        let fix = format!("ip address delete {other} dev {}", quoted(name));
        Some(finding.impact(impact).fix(fix))
    })
}

/// Returns whether pods may use `address` of the bridge: the bridge has ports, or the address is
/// the gateway of a configured network.
fn is_needed(node: &Node, bridge: &Link, address: IpNetwork) -> bool {
    let mut gateways = routed(node, bridge).flat_map(Range::all_of);
    node.is_in_use(&bridge.name) || gateways.any(|it| it.gateway() == Some(address))
}

/// Finds gateway addresses that the attached pods use and the bridge no longer has.
fn gateways(node: &Node, bridge: &Link, attached: &[&Attached]) -> Vec<Finding> {
    let is_used = |range: &Range<'_>| {
        let of_network = |it: &&&Attached| it.attachment.network.as_str() == range.source.name();
        let attached = attached.iter().filter(of_network);
        let mut addresses = attached.flat_map(|it| it.addresses());
        addresses.any(|it| range.subnet.contains(it.ip()))
    };
    let has_ports = node.is_in_use(&bridge.name);
    let sources = routed(node, bridge).filter(|_| has_ports);
    let ranges = sources.flat_map(Range::all_of);
    let missing = ranges.filter(is_used).filter_map(|it| it.gateway());
    let missing = missing.filter(|it| !node.has_address(bridge.index, it.ip()));
    let name = &bridge.name;
    let finding = |gateway| {
        let message = format!("{name} lacks the gateway's address {gateway}");
        let impact =
            "Pods reach nothing beyond their bridge. A network manager may have deleted it.";
        let fix = format!("ip address add {gateway} dev {}", quoted(name));
        Finding::problem(message).impact(impact).fix(fix)
    };
    missing.map(finding).collect()
}

fn port_mtus(node: &Node, bridge: &Link) -> Option<Finding> {
    let (name, mtu) = (&bridge.name, bridge.mtu);
    let other = node.ports(bridge.index).filter(|it| it.mtu != mtu);
    let other: Vec<_> = other.map(|it| format!("{} {}", it.name, it.mtu)).collect();
    let found = some_of(&other);
    (!other.is_empty()).then(|| {
        let message = format!("{name} has MTU {mtu}, but its ports have {found}");
        let impact = "Packets above the smallest MTU of the path are dropped silently: connections open \
             and then hang. Pods keep their MTU until they are recreated.";
        let fix = format!("ip -details link show master {}", quoted(name));
        Finding::warning(message).impact(impact).fix(fix)
    })
}

/// Finds uplinks with a smaller MTU than the bridge.
fn uplink_mtus(node: &Node, bridge: &Link) -> Vec<Finding> {
    let uplinks = node.uplinks().into_iter();
    let narrow = uplinks.filter(|it| it.index != bridge.index && it.mtu < bridge.mtu);
    let finding = |uplink: &Link| {
        let (name, narrow, mtu) = (&bridge.name, &uplink.name, uplink.mtu);
        let message = format!("{name} has MTU {}, but {narrow} has {mtu}", bridge.mtu);
        let impact = "Large packets to other hosts depend on ICMP, which many firewalls drop. Pods keep \
             their MTU until they are recreated.";
        let fix = format!("ip link set {} mtu {mtu}", quoted(name));
        Finding::warning(message).impact(impact).fix(fix)
    };
    narrow.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{attached, attached_at, attached_by, levels, link, node};
    use super::*;

    const LIST: &str = r#"{"name": "pods", "plugins": [{"type": "bridge", "isGateway": true,
        "ipam": {"type": "host-local", "ranges": [
            [{"subnet": "10.1.0.0/16"}, {"subnet": "10.2.0.0/16"}]]}}]}"#;

    fn with_ports(count: u32) -> Node {
        let mut node = node(&[("pods.conflist", LIST)]);
        let mut bridge = link(1, "cni0");
        bridge.kind = LinkKind::Bridge;
        node.links = vec![bridge];
        node.links.extend((0..count).map(|it| {
            let mut port = link(2 + it, "veth");
            port.master = Some(1);
            port
        }));
        node
    }

    #[test]
    fn ports_are_counted() {
        for (count, level) in [
            (1, Level::Ok),
            (920, Level::Ok),
            (921, Level::Warning),
            (1023, Level::Problem),
        ] {
            assert_eq!(levels(&judge(&with_ports(count))), [level], "{count}");
        }
    }

    #[test]
    fn bridge_that_is_down_or_none_is_a_problem() {
        let mut node = with_ports(0);
        node.links[0].is_up = false;
        assert_eq!(judge(&node)[0].message, "cni0 is down");
        node.links[0].kind = LinkKind::Veth;
        assert_eq!(judge(&node)[0].message, "cni0 is no bridge");
        assert_eq!(judge(&node)[0].fix, "vi /etc/cni/net.d/pods.conflist");
        node.links.clear();
        assert_eq!(judge(&node), []);
    }

    #[test]
    fn names_are_words_for_the_shell() {
        let list = r#"{"name": "pods", "plugins": [{"type": "bridge", "bridge": "br;x"}]}"#;
        let mut node = node(&[("pods.conflist", list)]);
        node.links = vec![link(1, "br;x")];
        node.links[0].kind = LinkKind::Bridge;
        node.links[0].is_up = false;
        assert_eq!(judge(&node)[0].fix, "ip link set 'br;x' up");
    }

    #[test]
    fn gateway_that_is_gone_is_a_problem_where_a_pod_is() {
        let mut node = with_ports(1);
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.attached = vec![attached_at("10.1.0.2/16", LIST, ["pods", "a"])];
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Problem]);
        assert_eq!(findings[0].fix, "ip address add 10.1.0.1/16 dev cni0");
        node.addresses = vec![Address {
            link: 1,
            address: "10.1.0.1/16".parse().unwrap(),
            is_tentative: false,
            is_duplicate: false,
            is_link_local: false,
            expires: false,
        }];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        let other = LIST.replace("\"isGateway\"", "\"bridge\": \"cni9\", \"isGateway\"");
        node.links.push(link(9, "cni9"));
        node.attached
            .push(attached_at("10.2.0.2/16", &other, ["pods", "b"]));
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.attached
            .push(attached_at("10.2.0.3/16", LIST, ["pods", "c"]));
        assert_eq!(levels(&judge(&node)), [Level::Problem]);
    }

    #[test]
    fn addresses_that_let_no_gateway_beside_them_are_a_problem() {
        let of_gateway = |subnet: &str, gateway: &str, found: &str, is_link_local| {
            let list = format!(
                r#"{{"name": "pods", "plugins": [{{"type": "bridge", "isGateway": true, "ipam":
                    {{"type": "host-local", "subnet": "{subnet}", "gateway": "{gateway}"}}}}]}}"#
            );
            let mut node = node(&[("pods.conflist", list.as_str())]);
            node.links = vec![link(1, "cni0")];
            node.addresses = vec![Address {
                link: 1,
                address: found.parse().unwrap(),
                is_tentative: false,
                is_duplicate: false,
                is_link_local,
                expires: false,
            }];
            others_addresses(&node, &node.links[0]).is_some()
        };
        assert!(of_gateway("10.1.0.0/16", "10.1.0.1", "10.1.0.9/16", false));
        assert!(of_gateway("10.1.0.0/16", "10.1.0.1", "10.9.0.1/16", false));
        assert!(!of_gateway("10.1.0.0/16", "10.1.0.1", "10.1.0.1/16", false));
        assert!(of_gateway("fd00::/64", "fd00::1", "fd00::9/64", false));
        assert!(!of_gateway("fe80::/64", "fe80::1", "fe80::9/64", true));
    }

    #[test]
    fn missing_bridge_of_live_pods_is_a_problem() {
        let mut node = with_ports(1);
        node.links.clear();
        let podman = r#"{"name": "podman", "plugins": [{"type": "bridge", "bridge": "cni9"}]}"#;
        let mut dead = attached_by(podman, "podman", "c");
        dead.is_alive = false;
        node.attached = vec![dead];
        assert_eq!(judge(&node), []);
        node.attached.push(attached("pods", "a"));
        node.attached.push(attached_by(podman, "podman", "b"));
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Problem, Level::Problem]);
        let message: Vec<_> = findings.iter().map(|it| it.message.as_str()).collect();
        assert_eq!(
            message,
            [
                "cni0 does not exist, so these pods have no network: cni:pods/a/eth0",
                "cni9 does not exist, so these pods have no network: cni:podman/b/eth0"
            ]
        );
    }

    #[test]
    fn ports_of_another_mtu_are_reported() {
        let mut node = with_ports(2);
        node.links[2].mtu = 1400;
        let findings = mtus(&node);
        assert_eq!(levels(&findings), [Level::Warning]);
        assert_eq!(
            findings[0].message,
            "cni0 has MTU 1500, but its ports have veth 1400"
        );
    }
}
