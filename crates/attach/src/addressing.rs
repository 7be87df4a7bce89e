//! Pure functions from a request and a lease to names, addresses and routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::Error;
use cni::result::{AddResult, IpConfig, Route};
use ipnetwork::IpNetwork;

/// The role of the host for the containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Gateway {
    /// No gateway: the network is layer 2 only.
    #[default]
    None,
    /// A link of the host has the gateway addresses.
    Address,
    /// Like [`Self::Address`], and the gateway is the containers' default route.
    DefaultRoute,
    /// The host's end of each pair has the gateway addresses, and the host routes to the container.
    /// The container reaches only the gateways without a next hop; they are the next hops to its own
    /// network, too.
    HostEnd,
}

/// Addresses and routes from a lease.
///
/// Without a lease (layer 2) it is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addressing {
    /// The container's addresses, each with its gateway.
    pub ips: Vec<IpConfig>,
    /// The container's routes, as the result reports them.
    pub routes: Vec<Route>,
    /// Gateway addresses, which a link of the host has.
    pub gateways: Vec<IpNetwork>,
    /// The role of the host.
    pub mode: Gateway,
}

impl Addressing {
    /// Derives addresses, gateways and routes from a lease.
    ///
    /// # Errors
    /// Code 7: no address, a network without room for a gateway, or an MTU too small for IPv6.
    pub fn leased(mode: Gateway, lease: &AddResult, mtu: u32) -> Result<Self, Error> {
        if lease.ips.is_empty() {
            return Err(Error::invalid("ipam", "the plugin leased no address"));
        }
        if need_ipv6(&lease.ips) && mtu < IPV6_MINIMUM_MTU {
            let reason = format!("{mtu} is under {IPV6_MINIMUM_MTU} bytes, which IPv6 needs");
            return Err(Error::invalid("mtu", reason));
        }
        let leased = Self::of(mode, &lease.ips, &lease.routes)?;
        let routes = routes(&leased.ips, &lease.routes, mode)?;
        Ok(Self { routes, ..leased })
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

    /// Returns the state that CHECK expects of the interface at `place` of the result. Later
    /// plugins may have removed routes from the result or added addresses of other interfaces.
    ///
    /// # Errors
    /// Code 7: a network has no room for a gateway.
    pub(crate) fn reported(
        mode: Gateway,
        result: &AddResult,
        place: Option<usize>,
    ) -> Result<Self, Error> {
        let is_own = |ip: &&IpConfig| ip.interface.is_none_or(|it| Some(it) == place);
        Self::of(mode, result.ips.iter().filter(is_own), &result.routes)
    }
}

/// Returns whether the addresses need IPv6 in the sandbox.
pub(crate) fn need_ipv6(ips: &[IpConfig]) -> bool {
    ips.iter().any(|ip| ip.address.is_ipv6())
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

/// Returns the gateway addresses without duplicates: on a link that is shared, with their networks'
/// prefixes.
fn gateways(ips: &[IpConfig], mode: Gateway) -> Result<Vec<IpNetwork>, Error> {
    let mut gateways = Vec::new();
    if mode == Gateway::None {
        return Ok(gateways);
    }
    for ip in ips {
        let Some(gateway) = ip.gateway else { continue };
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

/// Returns the lease's routes, plus default routes for [`Gateway::DefaultRoute`]. A default route
/// of the lease in the main table is kept; without a next hop it uses the gateway.
fn routes(ips: &[IpConfig], leased: &[Route], mode: Gateway) -> Result<Vec<Route>, Error> {
    let mut routes = leased.to_vec();
    if mode != Gateway::DefaultRoute {
        return Ok(routes);
    }
    for gateway in ips.iter().filter_map(|ip| ip.gateway) {
        let dst = default_route(gateway)?;
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
    Ok(routes)
}

/// Returns whether the route is in the main table; 0 means `main`, too.
fn is_in_main_table(route: &Route) -> bool {
    route
        .table
        .is_none_or(|table| [0, MAIN_TABLE].contains(&table))
}

/// Returns whether the scope makes the destination on-link, for which the kernel accepts no next
/// hop.
fn is_on_link(route: &Route) -> bool {
    route.gw.is_none() && route.scope.is_some_and(|scope| scope >= LINK_SCOPE)
}

/// Returns the next hop of `route`: its own, or else the first gateway of its family. Returns
/// `None` for an on-link destination.
pub(crate) fn next_hop(route: &Route, ips: &[IpConfig]) -> Option<IpAddr> {
    if is_on_link(route) {
        return None;
    }
    let family = |gateway: &IpAddr| gateway.is_ipv4() == route.dst.is_ipv4();
    route
        .gw
        .or_else(|| ips.iter().filter_map(|ip| ip.gateway).find(family))
}

/// Returns the first address after the network's own.
fn first_host(address: IpNetwork) -> Option<IpAddr> {
    let gateway = match address.network() {
        IpAddr::V4(network) => IpAddr::from(Ipv4Addr::from(u32::from(network).checked_add(1)?)),
        IpAddr::V6(network) => IpAddr::from(Ipv6Addr::from(u128::from(network).checked_add(1)?)),
    };
    (address.contains(gateway) && gateway != address.ip()).then_some(gateway)
}

fn default_route(gateway: IpAddr) -> Result<IpNetwork, Error> {
    let unspecified = match gateway {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    IpNetwork::new(unspecified, 0).map_err(|error| Error::invalid("ipam", error.to_string()))
}

/// `RT_TABLE_MAIN` of rtnetlink(7).
const MAIN_TABLE: u32 = 254;

/// `RT_SCOPE_LINK` of rtnetlink(7); greater values are narrower.
const LINK_SCOPE: u8 = 253;

/// Minimum MTU of IPv6 (RFC 8200), in bytes.
const IPV6_MINIMUM_MTU: u32 = 1280;

#[cfg(test)]
mod tests;
