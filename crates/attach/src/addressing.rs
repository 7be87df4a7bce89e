//! Derives addresses, gateways and routes from a lease, without side effects.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::Error;
use cni::result::{AddResult, IpConfig, Route};
use ipnetwork::IpNetwork;
use netlink::IpVersion;

/// Whether and how the host is the gateway of the containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Gateway {
    /// No gateway: the network is layer 2 only.
    #[default]
    None,
    /// The bridge, or its VLAN link, has the gateway addresses.
    Address,
    /// Like [`Self::Address`]. The container also gets a default route through the gateway.
    DefaultRoute,
    /// The host's end of each veth pair has the gateway addresses, and the host has a route to each
    /// address of the container. The container has a direct route only to the gateways. It reaches
    /// even its own network through them.
    HostEnd,
}

/// Addresses and routes from a lease; empty if the network has no IPAM plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addressing {
    /// The container's addresses, each with its gateway.
    pub ips: Vec<IpConfig>,
    /// The container's routes, as the result reports them.
    pub routes: Vec<Route>,
    /// The gateway addresses that a link of the host must have.
    pub gateways: Vec<IpNetwork>,
    /// Whether and how the host is the gateway.
    pub mode: Gateway,
}

impl Addressing {
    /// Derives addresses, gateways and routes from a lease.
    ///
    /// # Errors
    /// Code 7, if one of these is true:
    ///
    /// - The lease has no address.
    /// - The lease has the same address twice, and an interface would reject the second one.
    /// - The host is the gateway, the lease names no gateway for an address, and the function
    ///   cannot derive one: the container itself has the second address of its network, or the
    ///   network has only one address.
    /// - A gateway cannot be an address of the host.
    /// - The lease has an IPv6 address, and the MTU is too small for IPv6.
    pub fn leased(mode: Gateway, lease: &AddResult, mtu: u32) -> Result<Self, Error> {
        if lease.ips.is_empty() {
            return Err(Error::invalid("ipam", "the plugin leased no address"));
        }
        expect_distinct(&lease.ips)?;
        if need_ipv6(&lease.ips) && mtu < IPV6_MINIMUM_MTU {
            let reason = format!("{mtu} is under {IPV6_MINIMUM_MTU} bytes, which IPv6 needs");
            return Err(Error::invalid("mtu", reason));
        }
        let leased = Self::of(mode, &lease.ips, &lease.routes)?;
        let routes = routes(&leased.ips, &lease.routes, mode);
        Ok(Self { routes, ..leased })
    }

    /// Does the same for a network whose gateway is not the host. Without a lease, returns no
    /// addresses.
    ///
    /// # Errors
    /// Those of [`Self::leased`].
    pub fn of_lease(lease: Option<&AddResult>, mtu: u32) -> Result<Self, Error> {
        let addressing = lease.map(|it| Self::leased(Gateway::None, it, mtu));
        addressing.unwrap_or_else(|| Ok(Self::default()))
    }

    fn of<'i>(
        mode: Gateway,
        ips: impl IntoIterator<Item = &'i IpConfig>,
        routes: &[Route],
    ) -> Result<Self, Error> {
        let ips = ips.into_iter().map(|ip| with_gateway(ip, mode));
        let ips = ips.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            gateways: gateways(&ips, mode)?,
            routes: routes.to_vec(),
            ips,
            mode,
        })
    }

    /// Returns whether one of the addresses is IPv6.
    pub fn has_ipv6(&self) -> bool {
        need_ipv6(&self.ips)
    }

    /// Returns the addresses and routes that CHECK expects of the container's interface. `place` is
    /// the index of this interface in `interfaces` of `result`. The function leaves out addresses
    /// that other plugins of the chain added for other interfaces, and routes to gateways in their
    /// subnets. The routes are those of `result`, so CHECK does not expect routes that later plugins
    /// removed.
    ///
    /// # Errors
    /// Code 7: a gateway is missing and cannot be derived, or cannot be an address of the host.
    pub fn reported(
        mode: Gateway,
        result: &AddResult,
        place: Option<usize>,
    ) -> Result<Self, Error> {
        let is_own = |gateway: IpAddr| {
            let mut others = result.ips.iter();
            own_ips(result, place).any(|it| it.address.contains(gateway))
                || !others.any(|it| it.address.contains(gateway))
        };
        let routes = result.routes.iter();
        let routes = routes.filter(|it| it.gw.is_none_or(is_own));
        let routes: Vec<_> = routes.cloned().collect();
        Self::of(mode, own_ips(result, place), &routes)
    }
}

/// Returns the addresses in `result` that belong to the interface with the index `place` in its
/// `interfaces`, and those that name no interface. Later plugins of the chain may have added
/// addresses for other interfaces.
pub(crate) fn own_ips(result: &AddResult, place: Option<usize>) -> impl Iterator<Item = &IpConfig> {
    let is_own = move |ip: &&IpConfig| ip.interface.is_none_or(|it| Some(it) == place);
    result.ips.iter().filter(is_own)
}

pub(crate) fn need_ipv6(ips: &[IpConfig]) -> bool {
    ips.iter().any(|ip| ip.address.is_ipv6())
}

/// Rejects an IPv6 address that occurs twice, and an IPv4 address that occurs twice with the same
/// prefix length. The kernel accepts one IPv4 address with several prefix lengths, but rejects this
/// for IPv6 (`ipv6_add_addr()` in net/ipv6/addrconf.c).
fn expect_distinct(ips: &[IpConfig]) -> Result<(), Error> {
    let addresses = ips.iter().map(|ip| ip.address);
    for (index, one) in addresses.clone().enumerate() {
        let is_same = |it: &IpNetwork| it.ip() == one.ip() && (one.is_ipv6() || *it == one);
        if let Some(earlier) = addresses.clone().take(index).find(is_same) {
            let reason = format!(
                "the plugin leased both {earlier} and {one}; an interface cannot have both"
            );
            return Err(Error::invalid("ipam", reason));
        }
    }
    Ok(())
}

/// Returns the addresses without prefix lengths. Returns an address with several prefix lengths
/// only once, because it has one element in an `nf_tables` set and one route on the host.
pub(crate) fn hosts(ips: &[IpConfig]) -> BTreeSet<IpAddr> {
    ips.iter().map(|ip| ip.address.ip()).collect()
}

fn with_gateway(ip: &IpConfig, mode: Gateway) -> Result<IpConfig, Error> {
    let mut ip = ip.clone();
    if ip.gateway.is_none() && mode != Gateway::None {
        let gateway = first_host(ip.address).ok_or_else(|| {
            let reason = format!(
                "{} has no room for a gateway beside the container, and the plugin leased none",
                ip.address
            );
            Error::invalid("ipam", reason)
        })?;
        ip.gateway = Some(gateway);
    }
    Ok(ip)
}

/// Returns the addresses that the host must have as the gateway of `ips`, without duplicates. On a
/// bridge or its VLAN link, a gateway has the prefix length of its network. On the host's end of a
/// veth pair without a bridge, it has the prefix length 32 (IPv4) or 128 (IPv6).
fn gateways(ips: &[IpConfig], mode: Gateway) -> Result<Vec<IpNetwork>, Error> {
    let mut gateways = Vec::new();
    if mode == Gateway::None {
        return Ok(gateways);
    }
    for ip in ips {
        let Some(gateway) = ip.gateway else { continue };
        expect_of_host(gateway, ip, ips)?;
        let address = match mode {
            Gateway::HostEnd => Ok(IpNetwork::from(gateway)),
            _ => IpNetwork::new(gateway, ip.address.prefix()),
        };
        let address = address
            .map_err(|error| Error::invalid("ipam", format!("gateway {gateway}: {error}")))?;
        if !gateways.contains(&address) {
            gateways.push(address);
        }
    }
    Ok(gateways)
}

/// Rejects the gateway of `ip` if the host cannot have this address: if it is one of the
/// container's own addresses (`all`), or a broadcast, multicast, unspecified or loopback address.
/// The kernel accepts most of these, so no later step would reject them.
fn expect_of_host(gateway: IpAddr, ip: &IpConfig, all: &[IpConfig]) -> Result<(), Error> {
    let is_broadcast = match (gateway, ip.address) {
        (IpAddr::V4(it), IpNetwork::V4(network)) => {
            it.is_broadcast() || network.prefix() < V4_POINT_TO_POINT && it == network.broadcast()
        }
        _ => false,
    };
    let refused = [
        (hosts(all).contains(&gateway), "the container's own address"),
        (is_broadcast, "a broadcast address"),
        (gateway.is_multicast(), "a multicast address"),
        (gateway.is_unspecified(), "the unspecified address"),
        (gateway.is_loopback(), "a loopback address"),
    ];
    let Some((_, what)) = refused.into_iter().find(|(is_it, _)| *is_it) else {
        return Ok(());
    };
    let reason = format!("the gateway {gateway} is {what}; choose another gateway");
    Err(Error::invalid("ipam", reason))
}

/// Returns the leased routes, with these changes:
///
/// - For [`Gateway::DefaultRoute`], ensures a default route in the main table for each IP version:
///   adds the route if it is missing, and sets the gateway as its next hop if it has none. An
///   on-link default route stays as leased.
/// - For [`Gateway::HostEnd`], replaces a next hop in a network of the container by the gateway of
///   this network, because the container reaches even its own network through the gateway.
fn routes(ips: &[IpConfig], leased: &[Route], mode: Gateway) -> Vec<Route> {
    let mut routes = leased.to_vec();
    if mode == Gateway::HostEnd {
        for next_hop in routes.iter_mut().filter_map(|it| it.gw.as_mut()) {
            *next_hop = towards(*next_hop, ips);
        }
    }
    if mode != Gateway::DefaultRoute {
        return routes;
    }
    for gateway in ips.iter().filter_map(|ip| ip.gateway) {
        let dst = IpVersion::of(gateway).every_address();
        let is_it = |route: &&mut Route| route.dst == dst && is_in_main_table(route);
        match routes.iter_mut().find(is_it) {
            Some(route) if is_on_link(route) => {}
            Some(route) => route.gw = route.gw.or(Some(gateway)),
            None => routes.push(Route {
                gw: Some(gateway),
                ..Route::to(dst)
            }),
        }
    }
    routes
}

/// Returns the address to which a container without a bridge sends packets for `next_hop`: the
/// gateway of the network of `ips` that contains `next_hop`. If there is no such network, or if
/// `next_hop` is a gateway itself, returns `next_hop`.
fn towards(next_hop: IpAddr, ips: &[IpConfig]) -> IpAddr {
    if ips.iter().any(|ip| ip.gateway == Some(next_hop)) {
        return next_hop;
    }
    let of_network = ips.iter().find(|ip| ip.address.contains(next_hop));
    of_network.and_then(|ip| ip.gateway).unwrap_or(next_hop)
}

/// Returns whether the route is in the main table. Table 0 means the main table, too.
fn is_in_main_table(route: &Route) -> bool {
    route
        .table
        .is_none_or(|table| [0, MAIN_TABLE].contains(&table))
}

/// Returns whether the route has no next hop and a scope that makes its destination on-link. The
/// kernel accepts no next hop for such a route.
fn is_on_link(route: &Route) -> bool {
    route.gw.is_none() && route.scope.is_some_and(|scope| scope >= LINK_SCOPE)
}

/// Returns the next hop of `route`: its own, or else the first gateway in `ips` of the same IP
/// version. Returns `None` for an on-link destination, or if there is no such gateway.
pub(crate) fn next_hop(route: &Route, ips: &[IpConfig]) -> Option<IpAddr> {
    if is_on_link(route) {
        return None;
    }
    let family = |gateway: &IpAddr| gateway.is_ipv4() == route.dst.is_ipv4();
    route
        .gw
        .or_else(|| ips.iter().filter_map(|ip| ip.gateway).find(family))
}

/// Returns the gateway for `address` if the lease names none: the second address of its network,
/// such as 10.1.0.1 for 10.1.0.9/24. Returns `None` if the container itself has this address, or if
/// the network has only one address.
fn first_host(address: IpNetwork) -> Option<IpAddr> {
    let gateway = address.iter().nth(1)?;
    (gateway != address.ip()).then_some(gateway)
}

/// `RT_TABLE_MAIN` of rtnetlink(7).
pub(crate) const MAIN_TABLE: u32 = 254;

/// `RT_SCOPE_LINK` of rtnetlink(7). A greater value means a narrower scope.
const LINK_SCOPE: u8 = 253;

/// An IPv4 network with this prefix length or a longer one has no broadcast address (RFC 3021).
const V4_POINT_TO_POINT: u8 = 31;

/// Minimum MTU of IPv6 (RFC 8200), in bytes.
const IPV6_MINIMUM_MTU: u32 = 1280;

#[cfg(test)]
mod tests;
