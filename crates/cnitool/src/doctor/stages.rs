//! Chooses the packets that doctor sends through a copy of the node's rules.

use std::collections::BTreeSet;
use std::net::IpAddr;

use attach::BRIDGE_NF_CALL;
use ipnetwork::IpNetwork;
use netlink::{Link, LinkKind};
use node::{Node, Source, Stage, is_looked_up};

use super::range::Range;

/// Returns one stage for each address family of each bridge that is the gateway of its pods.
pub fn stages(node: &Node) -> Vec<Stage> {
    let mut seen = BTreeSet::new();
    let sources = node.configuration.sources();
    let routed = sources.filter(|it| it.is_gateway() && !it.has_vlan());
    let both = routed.flat_map(|it| [(it, true), (it, false)]);
    let stages = both.filter_map(|(source, is_ipv4)| stage(node, source, is_ipv4));
    let stages = stages.filter(|it| seen.insert((it.bridge.name.clone(), it.pod.is_ipv4())));
    stages.collect()
}

fn stage(node: &Node, source: Source<'_>, is_ipv4: bool) -> Option<Stage> {
    let name = source.bridge()?;
    let Ends {
        gateway,
        pod,
        host_port,
    } = ends(node, source, is_ipv4)?;
    let next = node.links.iter().map(|it| it.index).max().unwrap_or(1) + 1;
    let bridge = node.link_called(name).cloned();
    let bridge = bridge.unwrap_or_else(|| made_up(next, name));
    let uplink = uplink(node, is_ipv4, &bridge).cloned();
    let uplink = uplink.unwrap_or_else(|| made_up(next + 1, "eth0"));
    let links = [bridge.index, uplink.index];
    let of_links = node.addresses.iter().filter(|it| links.contains(&it.link));
    let of_links = of_links.filter(|it| !it.is_link_local);
    let mut addresses: Vec<_> = of_links.map(|it| (it.link, it.address)).collect();
    if !addresses.iter().any(|it| it.1.ip() == gateway) {
        addresses.push((bridge.index, IpNetwork::new(gateway, pod.prefix()).ok()?));
    }
    let mut of_uplink = addresses.iter().filter(|it| it.0 == uplink.index);
    if !of_uplink.any(|it| it.1.is_ipv4() == is_ipv4) {
        let own = if is_ipv4 { OWN_IPV4 } else { OWN_IPV6 };
        addresses.push((uplink.index, own.parse().ok()?));
    }
    addresses.dedup();
    let bridge_calls = BRIDGE_NF_CALL.iter().filter_map(|key| {
        let value = node.sysctl(&format!("net.bridge.{key}"))?;
        Some(((*key).to_owned(), value.to_owned()))
    });
    Some(Stage {
        bridge: without_master(bridge),
        uplink: without_master(uplink),
        addresses,
        gateway,
        pod,
        permission: permission(source),
        host_port,
        bridge_calls: bridge_calls.collect(),
    })
}

/// Returns the configuration of `firewall` in the network's list.
fn permission(source: Source<'_>) -> Option<firewall::Config> {
    let mut plugins = source.network.list.plugins.iter();
    let plugin = plugins.find(|it| it.program == "firewall")?;
    let keys = serde_json::Value::Object(plugin.config.clone());
    firewall::Config::read(&keys).ok()
}

/// The addresses and the port of a stage that depend on the network.
struct Ends {
    gateway: IpAddr,
    /// A pod's address with its prefix length.
    pod: IpNetwork,
    /// A port of the host, and the port of the pod that it is forwarded to.
    host_port: Option<(u16, u16)>,
}

/// Returns the gateway's address, and the address of a pod that a port of the host is forwarded to.
/// Without such a pod, it returns a free address of the range, if there is one.
fn ends(node: &Node, source: Source<'_>, is_ipv4: bool) -> Option<Ends> {
    let ranges = Range::all_of(source);
    let range = ranges.iter().find(|it| it.subnet.is_ipv4() == is_ipv4);
    let (subnet, gateway) = if let Some(range) = range {
        (range.subnet, range.gateway()?.ip())
    } else {
        let mut of_bridge = node.addresses_of(node.link_called(source.bridge()?)?.index);
        let own = of_bridge.find(|it| it.address.is_ipv4() == is_ipv4 && !it.is_link_local)?;
        (own.address, own.address.ip())
    };
    let ports = node.firewall.elements.iter().filter_map(|it| it.port);
    let mut ports = ports.filter(|it| it.port.protocol == TCP && it.port.address.is_none());
    let port = ports.find(|it| subnet.contains(it.pod) && it.pod != gateway);
    let is_held = |address| node.leases.iter().any(|it| it.address == address);
    let is_free = |it| !is_held(it) && range.is_none_or(|range| range.leases(it));
    let hosts = || subnet.iter().skip(1).take(MOST).filter(|it| *it != gateway);
    let free = || hosts().find(|it| is_free(*it)).or_else(|| hosts().next());
    let pod = port.map(|it| it.pod).or_else(free)?;
    Some(Ends {
        gateway,
        pod: IpNetwork::new(pod, subnet.prefix()).ok()?,
        host_port: port.map(|it| (it.port.port, it.container_port)),
    })
}

/// Returns the link of the default route. Without a default route, returns a link that may reach
/// another host.
fn uplink<'n>(node: &'n Node, is_ipv4: bool, bridge: &Link) -> Option<&'n Link> {
    let routes = node.routes.iter();
    let default = routes.filter(|it| it.is_default() && is_looked_up(it.table));
    // A family without a default route is assumed to use the other family's link.
    let first = default.min_by_key(|it| {
        let is_other = it.destination.is_ipv4() != is_ipv4;
        (is_other, it.priority.unwrap_or_default())
    });
    let first = first.and_then(|it| node.link(it.links().next()?));
    first.or_else(|| {
        let ours = node.configuration.bridges();
        let beside = node.addresses.iter().filter(|it| !it.is_link_local);
        let links = beside.filter_map(|it| Some((node.link(it.link)?, it.address)));
        let outer = links.filter(|(it, _)| {
            let is_inner = it.kind == LinkKind::Loopback || ours.contains(it.name.as_str());
            it.is_up && it.index != bridge.index && !is_inner
        });
        let best = outer.min_by_key(|(_, address)| address.is_ipv4() != is_ipv4);
        best.map(|(link, _)| link)
    })
}

fn without_master(link: Link) -> Link {
    Link {
        master: None,
        ..link
    }
}

fn made_up(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.to_owned(),
        mtu: 1500,
        ..Link::default()
    }
}

const TCP: u8 = 6;

/// Largest number of addresses that are searched for a free one.
const MOST: usize = 1 << 16;

/// Addresses that the copy's uplink gets if the node's uplink has none of the family (RFC 5737, RFC
/// 3849).
const OWN_IPV4: &str = "192.0.2.1/24";
const OWN_IPV6: &str = "2001:db8::1/64";
