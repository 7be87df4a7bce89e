//! Chooses the links and addresses for the packets that doctor sends through a copy of the node's
//! firewall rules.

use std::collections::BTreeSet;
use std::net::IpAddr;

use attach::{BRIDGE_NF_CALL, HOST_LINK_PREFIX};
use facts::Addresses;
use ipnetwork::IpNetwork;
use itertools::Itertools as _;
use netlink::{Link, LinkKind};
use node::{Node, Range, Source, Stage, is_looked_up};

/// Returns the stages: the links and addresses with which doctor sends packets through a copy of
/// the node's firewall rules. There is at most one [`Stage`] in each IP family for each bridge that
/// is the gateway of its pods, and for each network of veth pairs without a bridge.
pub fn stages(node: &Node) -> Vec<Stage> {
    let sources = node.configuration.sources();
    let both = sources.flat_map(|it| [(it, true), (it, false)]);
    let stages = both.filter_map(|(source, is_ipv4)| stage(node, source, is_ipv4));
    let stages = stages.unique_by(|it| (place(it), it.pod.is_ipv4()));
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
    if stage.is_routed() {
        return format!("of network {}", stage.network);
    }
    format!("on {}", stage.access.name)
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
    let link = |known: Option<&Link>, index, name| Link {
        master: None,
        ..known.cloned().unwrap_or_else(|| made_up(index, name))
    };
    let mut access = match source.bridge() {
        Some(name) => link(node.link_called(name), next, name),
        None => made_up(next, &format!("{HOST_LINK_PREFIX}0000000")),
    };
    access.kind = source.bridge().map_or(LinkKind::Veth, |_| LinkKind::Bridge);
    let uplink = link(uplink(node, is_ipv4, &access), next + 1, "eth0");
    let addresses = addresses(node, &access, &uplink, &ends)?;
    let bridge_calls = BRIDGE_NF_CALL.iter().filter_map(|key| {
        let value = node.sysctl(&format!("net.bridge.{key}"))?;
        Some(((*key).to_owned(), value.to_owned()))
    });
    Some(Stage {
        network: source.name().to_owned(),
        access,
        uplink,
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
    access: &Link,
    uplink: &Link,
    ends: &Ends,
) -> Option<Vec<(u32, IpNetwork)>> {
    let links = [access.index, uplink.index];
    let of_links = node.addresses.iter().filter(|it| links.contains(&it.link));
    let of_links = of_links.filter(|it| !it.is_link_local);
    let mut addresses: Vec<_> = of_links.map(|it| (it.link, it.address)).collect();
    let gateway = match access.kind {
        LinkKind::Veth => ends.gateway.into(),
        _ => IpNetwork::new(ends.gateway, ends.pod.prefix()).ok()?,
    };
    if !addresses.iter().any(|it| it.1.ip() == ends.gateway) {
        addresses.push((access.index, gateway));
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

fn made_up(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.to_owned(),
        mtu: 1500,
        ..Link::default()
    }
}

/// The gateway and a pod of a network, which are the ends of the packets that doctor sends.
struct Ends {
    gateway: IpAddr,
    /// The pod's address with its prefix length.
    pod: IpNetwork,
    /// A TCP hostPort, on all addresses of the host, that is forwarded to `pod`, and the port of
    /// `pod` that it is forwarded to. `None` if no pod of the network has such a hostPort.
    host_port: Option<(u16, u16)>,
}

impl Ends {
    /// Chooses the gateway's address and the address of a pod. Returns `None` if one of them is not
    /// known in this IP family. The pod's address is the first of these that exists:
    ///
    /// - the address of a pod with a TCP hostPort on all addresses of the host;
    /// - the address of a pod for which the plugin `firewall` has an element in `nf_tables`;
    /// - an address in the network's ranges (a free one, if there is one), an address that the
    ///   plugin `static` assigns, the address of a live pod, or an address in the bridge's subnet.
    fn find(node: &Node, source: Source<'_>, is_ipv4: bool) -> Option<Self> {
        let is_of_family = |it: &IpNetwork| it.is_ipv4() == is_ipv4;
        let ranges = Range::all_of(source);
        let range = ranges.iter().find(|it| is_of_family(&it.subnet));
        let leased = range.and_then(|it| Some((it.subnet, it.gateway()?.ip(), free(node, it)?)));
        let of_bridge = || {
            let bridge = node.link_called(source.bridge()?)?.index;
            let own = node.addresses_of(bridge).filter(|it| !it.is_link_local);
            let own = own.map(|it| it.address).find(is_of_family)?;
            let pod = hosts(own).find(|it| *it != own.ip())?;
            Some((own, own.ip(), pod))
        };
        let chosen = || {
            let mut known = fixed(source).into_iter().chain(reported(node, source));
            let (address, gateway) = known.find(|it| is_of_family(&it.0))?;
            let gateway = gateway.or_else(|| hosts(address).next())?;
            Some((address, gateway, address.ip()))
        };
        let (subnet, gateway, new) = leased.or_else(chosen).or_else(of_bridge)?;
        let is_pod = |it: IpAddr| subnet.contains(it) && it != gateway;
        let elements = || node.firewall.elements.iter();
        let mut ports = elements().filter_map(|it| it.port);
        let port =
            ports.find(|it| it.port.protocol == TCP && it.port.address.is_none() && is_pod(it.pod));
        let mut allowed = elements().filter(|it| it.table == firewall::TABLE);
        let allowed = allowed.find_map(|element| element.address.filter(|it| is_pod(*it)));
        let pod = port.map(|it| it.pod).or(allowed).unwrap_or(new);
        Some(Self {
            gateway,
            pod: IpNetwork::new(pod, subnet.prefix()).ok()?,
            host_port: port.map(|it| (it.port.port, it.container_port)),
        })
    }
}

/// Returns a free address of the range. If all are leased, returns any address of the range's
/// subnet except the gateway's. Returns `None` if the subnet has no other address.
fn free(node: &Node, range: &Range<'_>) -> Option<IpAddr> {
    let gateway = range.gateway()?.ip();
    let is_held = |address| node.leases.iter().any(|it| it.address == address);
    let others = || hosts(range.subnet).filter(|it| *it != gateway);
    let mut free = others().filter(|it| !is_held(*it) && range.offers(*it));
    free.next().or_else(|| others().next())
}

/// Returns the addresses that the configuration gives to each pod, with their gateways.
fn fixed(source: Source<'_>) -> Vec<(IpNetwork, Option<IpAddr>)> {
    match node::ipam(source.plugin).map(|(facts, keys)| (&facts.addresses, keys)) {
        Some((Addresses::Fixed(addresses), keys)) => addresses(keys),
        _ => Vec::new(),
    }
}

/// Returns the addresses of the network's live pods, with their gateways.
fn reported(node: &Node, source: Source<'_>) -> Vec<(IpNetwork, Option<IpAddr>)> {
    let of_network = node.alive();
    let of_network = of_network.filter(|it| it.attachment.network.as_str() == source.name());
    let ips = of_network.flat_map(|it| it.entry.reported().ips);
    ips.map(|it| (it.address, it.gateway)).collect()
}

/// Returns up to [`MOST`] addresses of the subnet, without the first one. The first one is the
/// network's own address, which no pod gets.
fn hosts(subnet: IpNetwork) -> impl Iterator<Item = IpAddr> {
    subnet.iter().skip(1).take(MOST)
}

/// Addresses for documentation (RFC 5737, RFC 3849). In the copy of the node's rules, the uplink
/// gets one of them if the node's uplink has no address of the IP family.
const OWN_IPV4: &str = "192.0.2.1/24";
const OWN_IPV6: &str = "2001:db8::1/64";

const TCP: u8 = 6;

/// Largest number of addresses that are searched for a free one.
const MOST: usize = 1 << 16;
