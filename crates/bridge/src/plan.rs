//! Pure functions from a request and a lease to names, addresses and routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::result::{AddResult, IpConfig, Route};
use cni::{Attachment, Error, NetworkName};
use ipnetwork::IpNetwork;
use netlink::MacAddress;
use sha2::{Digest as _, Sha256};

use crate::config::{Config, Gateway};

/// Addresses and routes from a lease.
///
/// Without a lease (layer 2) it is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The container's addresses, each with its gateway.
    pub ips: Vec<IpConfig>,
    /// The container's routes, as the result reports them.
    pub routes: Vec<Route>,
    /// The bridge's gateway addresses.
    pub gateways: Vec<IpNetwork>,
}

/// IPv6 inside the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    /// Enabled.
    On,
    /// Absent from the kernel, or disabled.
    Off,
}

impl Plan {
    /// Derives addresses, gateways and routes from a lease.
    ///
    /// # Errors
    /// Code 7: no address, a network without room for a gateway, or an MTU too small for IPv6.
    pub fn new(config: &Config, lease: &AddResult, mtu: u32) -> Result<Self, Error> {
        if lease.ips.is_empty() {
            return Err(Error::invalid("ipam", "the plugin leased no address"));
        }
        if ipv6(&lease.ips) == Ipv6::On && mtu < IPV6_MINIMUM_MTU {
            let reason = format!("{mtu} is under {IPV6_MINIMUM_MTU} bytes, which IPv6 needs");
            return Err(Error::invalid("mtu", reason));
        }
        let ips = lease.ips.iter().map(|ip| with_gateway(ip, config.gateway));
        let ips = ips.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            routes: routes(&ips, &lease.routes, config.gateway)?,
            gateways: gateways(&ips, config.gateway)?,
            ips,
        })
    }

    /// Returns the state that CHECK expects of the interface at `place` of the result. Later
    /// plugins may have removed routes from the result or added addresses of other interfaces.
    ///
    /// # Errors
    /// Code 7: a network has no room for a gateway.
    pub fn reported(
        config: &Config,
        result: &AddResult,
        place: Option<usize>,
    ) -> Result<Self, Error> {
        let is_own = |ip: &&IpConfig| ip.interface.is_none_or(|it| Some(it) == place);
        let ips = result.ips.iter().filter(is_own);
        let ips = ips.map(|ip| with_gateway(ip, config.gateway));
        let ips = ips.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            routes: result.routes.clone(),
            gateways: gateways(&ips, config.gateway)?,
            ips,
        })
    }

    /// Returns whether the addresses need IPv6.
    pub fn ipv6(&self) -> Ipv6 {
        ipv6(&self.ips)
    }
}

fn ipv6(ips: &[IpConfig]) -> Ipv6 {
    if ips.iter().any(|ip| ip.address.is_ipv6()) {
        return Ipv6::On;
    }
    Ipv6::Off
}

fn with_gateway(ip: &IpConfig, mode: Gateway) -> Result<IpConfig, Error> {
    let mut ip = ip.clone();
    if ip.gateway.is_none() && mode != Gateway::None {
        let gateway = first_host(ip.address).ok_or_else(|| {
            let reason = format!(
                "{} has no room for a gateway beside the container",
                ip.address
            );
            Error::invalid("isGateway", reason)
        })?;
        ip.gateway = Some(gateway);
    }
    Ok(ip)
}

/// Returns the gateway addresses with their networks' prefixes, without duplicates.
fn gateways(ips: &[IpConfig], mode: Gateway) -> Result<Vec<IpNetwork>, Error> {
    let mut gateways = Vec::new();
    if mode == Gateway::None {
        return Ok(gateways);
    }
    for ip in ips {
        let Some(gateway) = ip.gateway else { continue };
        let address = IpNetwork::new(gateway, ip.address.prefix());
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

/// Returns the name of the host's end: `veth` and 11 digits of the attachment's hash. DEL needs no
/// other input to find it.
pub(crate) fn host_link_name(attachment: &Attachment) -> String {
    format!("{HOST_NAME}{}", attachment.digest_hex(HOST_NAME_DIGITS))
}

/// Returns the MAC of the host's end: locally administered, and never a container's. It identifies
/// the network before the alias is set.
pub(crate) fn host_mac(attachment: &Attachment) -> MacAddress {
    mac(&[HOST_MAC], &attachment.marked_digest())
}

/// Returns whether the name has the form of [`host_link_name`].
pub(crate) fn is_host_link_name(name: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = name.strip_prefix(HOST_NAME).unwrap_or_default();
    digits.len() == HOST_NAME_DIGITS && digits.bytes().all(is_digit)
}

/// Returns whether a host end may have the name, including the reference's.
pub(crate) fn may_be_a_host_link(name: &str) -> bool {
    name.starts_with(HOST_NAME)
}

/// Returns whether a host end in `network` may have this MAC.
pub(crate) fn is_host_mac_in(network: &NetworkName, mac: MacAddress) -> bool {
    let [a, b] = network.mark();
    mac.0.starts_with(&[HOST_MAC, a, b])
}

/// Returns the MAC of the container's end before an address is known.
pub(crate) fn early_mac(attachment: &Attachment) -> MacAddress {
    mac(&[0x06], &attachment.digest())
}

/// Returns the MAC derived from the first address, IPv4 before IPv6. So neighbours' entries stay
/// valid when the address is leased again.
pub fn derived_mac(ips: &[IpConfig], attachment: &Attachment) -> MacAddress {
    let v4 = ips.iter().find(|ip| ip.address.is_ipv4());
    match v4.or(ips.first()) {
        Some(ip) => mac_of(ip.address.ip()),
        None => early_mac(attachment),
    }
}

/// Returns the MAC of an address. For IPv4 it is `0a:58` and the four bytes, as in kubenet; for
/// IPv6 it is `0e` and five bytes of the address's SHA-256.
fn mac_of(address: IpAddr) -> MacAddress {
    match address {
        IpAddr::V4(address) => mac(&[0x0a, 0x58], &address.octets()),
        IpAddr::V6(address) => mac(&[0x0e], &Sha256::digest(address.octets())),
    }
}

/// Returns the MAC of a bridge without one: it differs in each boot and is the same for all
/// callers.
pub(crate) fn bridge_mac(boot_id: &str, bridge: &str) -> MacAddress {
    mac(&[0x02], &Sha256::digest(format!("{boot_id}/{bridge}")))
}

/// Returns a MAC that starts with `prefix` and continues with the first bytes of `rest`.
fn mac(prefix: &[u8], rest: &[u8]) -> MacAddress {
    let mut bytes = [0; 6];
    let source = prefix.iter().chain(rest);
    bytes
        .iter_mut()
        .zip(source)
        .for_each(|(byte, source)| *byte = *source);
    MacAddress(bytes)
}

/// Returns whether an address does not determine `mac`, so neighbours must be notified.
pub(crate) fn must_announce(ips: &[IpConfig], mac: MacAddress) -> bool {
    ips.iter().any(|ip| mac_of(ip.address.ip()) != mac)
}

/// `RT_TABLE_MAIN` of rtnetlink(7).
const MAIN_TABLE: u32 = 254;

/// `RT_SCOPE_LINK` of rtnetlink(7); greater values are narrower.
const LINK_SCOPE: u8 = 253;

const HOST_NAME: &str = "veth";

/// Digits that fit into a link's name of 15 bytes.
const HOST_NAME_DIGITS: usize = 11;

/// The highest first byte: a bridge without an explicit MAC takes its ports' lowest one.
const HOST_MAC: u8 = 0xfe;

/// Minimum MTU of IPv6 (RFC 8200), in bytes.
const IPV6_MINIMUM_MTU: u32 = 1280;

#[cfg(test)]
mod tests;
