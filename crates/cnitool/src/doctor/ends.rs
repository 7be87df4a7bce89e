//! Chooses the gateway, the pod and the hostPort for the packets that doctor sends through a copy
//! of the node's firewall rules.

use std::net::IpAddr;

use facts::Addresses;
use ipnetwork::IpNetwork;
use node::{Node, Range, Source};

/// The gateway and a pod of a network, which are the ends of the packets that doctor sends.
pub struct Ends {
    pub gateway: IpAddr,
    /// The pod's address with its prefix length.
    pub pod: IpNetwork,
    /// A TCP hostPort, on all addresses of the host, that is forwarded to `pod`, and the port of
    /// `pod` that it is forwarded to. `None` if no pod of the network has such a hostPort.
    pub host_port: Option<(u16, u16)>,
}

impl Ends {
    /// Chooses the gateway's address and the address of a pod. Returns `None` if one of them is not
    /// known in this IP family. The pod's address is the first of these that exists:
    ///
    /// - the address of a pod with a TCP hostPort on all addresses of the host;
    /// - the address of a pod for which the plugin `firewall` has an element in `nf_tables`;
    /// - an address in the network's ranges (a free one, if there is one), an address that the
    ///   plugin `static` assigns, the address of a live pod, or an address in the bridge's subnet.
    pub fn find(node: &Node, source: Source<'_>, is_ipv4: bool) -> Option<Self> {
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

const TCP: u8 = 6;

/// Largest number of addresses that are searched for a free one.
const MOST: usize = 1 << 16;
