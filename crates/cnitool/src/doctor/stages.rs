//! Chooses the links and addresses for the packets that doctor sends through a copy of the node's
//! firewall rules.

use std::collections::BTreeSet;

use attach::{BRIDGE_NF_CALL, HOST_LINK_PREFIX};
use ipnetwork::IpNetwork;
use netlink::{Link, LinkKind};
use node::{Access, Node, Source, Stage, is_looked_up};

use super::ends::Ends;

/// Returns the stages: the links and addresses with which doctor sends packets through a copy of
/// the node's firewall rules. There is at most one [`Stage`] in each IP family for each bridge that
/// is the gateway of its pods, and for each network of veth pairs without a bridge.
pub fn stages(node: &Node) -> Vec<Stage> {
    let mut seen = BTreeSet::new();
    let sources = node.configuration.sources();
    let both = sources.flat_map(|it| [(it, true), (it, false)]);
    let stages = both.filter_map(|(source, is_ipv4)| stage(node, source, is_ipv4));
    let stages = stages.filter(|it| seen.insert((place(it), it.pod.is_ipv4())));
    stages.collect()
}

/// Returns the names of networks whose gateway is the node, but for which doctor cannot send
/// packets. Such a network has a VLAN or a gateway outside its subnet, or no address of a pod is
/// known.
pub fn untried(node: &Node) -> BTreeSet<&str> {
    let sources = node.configuration.sources();
    let without = sources.filter(|source| {
        let has_stage = |is_ipv4| stage(node, *source, is_ipv4).is_some();
        source.is_gateway() && !has_stage(true) && !has_stage(false)
    });
    without.map(Source::name).collect()
}

/// Returns words for messages that say where the pods are: `on cni0` or, without a bridge,
/// `of network pods`.
pub fn place(stage: &Stage) -> String {
    match &stage.access {
        Access::Bridge(bridge) => format!("on {}", bridge.name),
        Access::Pair(_) => format!("of network {}", stage.network),
    }
}

fn stage(node: &Node, source: Source<'_>, is_ipv4: bool) -> Option<Stage> {
    if !source.is_gateway() || source.has_vlan() {
        return None;
    }
    let ends = Ends::find(node, source, is_ipv4)?;
    if source.bridge().is_some() && !ends.pod.contains(ends.gateway) {
        return None;
    }
    let next = node.links.iter().map(|it| it.index).max().unwrap_or(1) + 1;
    let access = match source.bridge() {
        Some(name) => {
            let bridge = node.link_called(name).cloned();
            let bridge = bridge.unwrap_or_else(|| made_up(next, name));
            Access::Bridge(without_master(bridge))
        }
        None => Access::Pair(made_up(next, &format!("{HOST_LINK_PREFIX}0000000"))),
    };
    let uplink = uplink(node, is_ipv4, access.link()).cloned();
    let uplink = uplink.unwrap_or_else(|| made_up(next + 1, "eth0"));
    let addresses = addresses(node, &access, &uplink, &ends)?;
    let bridge_calls = BRIDGE_NF_CALL.iter().filter_map(|key| {
        let value = node.sysctl(&format!("net.bridge.{key}"))?;
        Some(((*key).to_owned(), value.to_owned()))
    });
    Some(Stage {
        network: source.name().to_owned(),
        access,
        uplink: without_master(uplink),
        addresses,
        gateway: ends.gateway,
        pod: ends.pod,
        permission: permission(source),
        host_port: ends.host_port,
        bridge_calls: bridge_calls.collect(),
    })
}

/// Returns the addresses of the uplink and of the link to the pod, as pairs of link index and
/// address. If neither link has the gateway's address, adds this address to the link to the pod. If
/// the uplink has no address of the pod's IP family, adds one to the uplink. Returns `None` if the
/// pod's prefix length is not valid for the gateway's address.
fn addresses(
    node: &Node,
    access: &Access,
    uplink: &Link,
    ends: &Ends,
) -> Option<Vec<(u32, IpNetwork)>> {
    let links = [access.link().index, uplink.index];
    let of_links = node.addresses.iter().filter(|it| links.contains(&it.link));
    let of_links = of_links.filter(|it| !it.is_link_local);
    let mut addresses: Vec<_> = of_links.map(|it| (it.link, it.address)).collect();
    let gateway = match access {
        Access::Bridge(_) => IpNetwork::new(ends.gateway, ends.pod.prefix()).ok()?,
        Access::Pair(_) => ends.gateway.into(),
    };
    if !addresses.iter().any(|it| it.1.ip() == ends.gateway) {
        addresses.push((access.link().index, gateway));
    }
    let is_ipv4 = ends.pod.is_ipv4();
    let mut of_uplink = addresses.iter().filter(|it| it.0 == uplink.index);
    if !of_uplink.any(|it| it.1.is_ipv4() == is_ipv4) {
        let own = if is_ipv4 { OWN_IPV4 } else { OWN_IPV6 };
        addresses.push((uplink.index, own.parse().ok()?));
    }
    addresses.dedup();
    Some(addresses)
}

/// Returns the configuration of `firewall` in the network's list; `None` if the list does not have
/// this plugin, or its configuration is not valid.
fn permission(source: Source<'_>) -> Option<firewall::Config> {
    let mut plugins = source.network.list.plugins.iter();
    let plugin = plugins.find(|it| node::facts(&it.program).has_table(firewall::TABLE))?;
    let keys = serde_json::Value::Object(plugin.config.clone());
    firewall::Config::read(&keys).ok()
}

/// Returns the link of the default route. Without a default route, returns a link that may reach
/// another host: it is up, has an address, and is neither `lo` nor a bridge of a network. Returns
/// `None` if there is no such link.
fn uplink<'n>(node: &'n Node, is_ipv4: bool, access: &Link) -> Option<&'n Link> {
    let routes = node.routes.iter();
    let default = routes.filter(|it| it.is_default() && is_looked_up(it.table));
    // A family without a default route is assumed to use the other family's link.
    let first = default.min_by_key(|it| {
        let is_other = it.destination.is_ipv4() != is_ipv4;
        (is_other, it.metric())
    });
    let first = first.and_then(|it| node.link(it.links().next()?));
    first.or_else(|| {
        let ours = node.configuration.bridges();
        let beside = node.addresses.iter().filter(|it| !it.is_link_local);
        let links = beside.filter_map(|it| Some((node.link(it.link)?, it.address)));
        let outer = links.filter(|(it, _)| {
            let is_inner = it.kind == LinkKind::Loopback || ours.contains(it.name.as_str());
            it.is_up && it.index != access.index && !is_inner
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

/// Addresses for documentation (RFC 5737, RFC 3849). In the copy of the node's rules, the uplink
/// gets one of them if the node's uplink has no address of the IP family.
const OWN_IPV4: &str = "192.0.2.1/24";
const OWN_IPV6: &str = "2001:db8::1/64";
