//! Veth pairs without a bridge: the host's end has the gateway addresses, and the host has a route
//! to each address of the container.
//!
//! The Go plugin `ptp` makes the same routes and addresses. So CHECK of this suite accepts an
//! attachment that the Go plugin made, and CHECK of the Go plugin accepts one of this suite. The
//! kernel deletes the routes and addresses with the link.

use std::net::IpAddr;

use cni::note;
use cni::result::IpConfig;
use ipnetwork::IpNetwork;
use netlink::{
    Connection, Dad, Link, LinkChange, LinkLocalOrigin, MacAddress, NewRoute, Request, Route,
    network_of,
};
use netns::Sysctl;

use crate::addressing::{hosts, need_ipv6};
use crate::{Addressing, Gateway, HOST_EXPOSED, gateway, harden};

/// Configures IPv6 on the host's end, which the caller has not brought up yet. If `ips` has no IPv6
/// address, disables IPv6. Otherwise, makes the host's end ignore router advertisements from the
/// container, because these could change the host's routes (CVE-2020-10749).
///
/// # Errors
/// A sysctl cannot be changed. Without an IPv6 address, a read-only `/proc/sys` is no error.
pub(crate) fn prepare_ipv6(end: &Link, ips: &[IpConfig]) -> anyhow::Result<()> {
    if need_ipv6(ips) {
        gateway::enable_ipv6(end)?;
        Sysctl::ipv6(&end.name, "accept_ra").ensure("0")?;
    } else {
        let disabled = Sysctl::ipv6(&end.name, "disable_ipv6").ensure("1");
        let unset = harden(disabled, HOST_EXPOSED)?;
        unset.iter().for_each(note);
    }
    Ok(())
}

/// Returns the requests that add the gateway addresses to the host's end, bring it up and add the
/// host's routes to the container. Returns an empty list for a network with a bridge.
pub(crate) fn host_requests(
    host: &Connection,
    end: &Link,
    addressing: &Addressing,
) -> anyhow::Result<Vec<Request>> {
    if addressing.mode != Gateway::HostEnd {
        return Ok(Vec::new());
    }
    let mut requests = match end.mac.filter(|_| need_ipv6(&addressing.ips)) {
        Some(mac) => link_local(end, mac)?,
        None => Vec::new(),
    };
    let gateways = addressing.gateways.iter();
    let add = |it: &IpNetwork| Request::add_address_without_route(end.index, *it, Dad::Skip);
    requests.extend(gateways.map(add));
    // The kernel accepts an IPv6 route only through a link that is up.
    requests.push(Request::change_link(&end.name, &LinkChange::Up));
    let (v4, v6): (Vec<_>, Vec<_>) = hosts(&addressing.ips)
        .into_iter()
        .partition(IpAddr::is_ipv4);
    let there = host.routes_to(&v6)?.into_iter();
    let v6 = v6.into_iter().zip(there.map(|it| preceding(&it?)));
    let routes = v4.into_iter().map(|to| (to, None)).chain(v6);
    let routes = routes.map(|(to, priority)| NewRoute {
        scope: Some(HOST_SCOPE),
        priority,
        ..NewRoute::on_link(IpNetwork::from(to), end.index)
    });
    requests.extend(routes.map(|route| Request::prepend_route(&route)));
    Ok(requests)
}

/// Returns the addresses that [`host_requests`] adds to the host's end: the gateway addresses and,
/// if the container has an IPv6 address, the link-local address.
pub(crate) fn host_addresses(end: &Link, addressing: &Addressing) -> Vec<IpAddr> {
    let link_local = end.mac.filter(|_| need_ipv6(&addressing.ips));
    let link_local = link_local.map(|mac| mac.link_local().into());
    let gateways = addressing.gateways.iter().map(IpNetwork::ip);
    gateways.chain(link_local).collect()
}

/// Returns the requests that add the link-local address of `mac` to `end`, which must be down. The
/// kernel needs this address as a source address when it asks neighbours for their MAC. The kernel
/// could generate the address itself, but the address would be usable only later, so the requests
/// also switch the generation off.
pub(crate) fn link_local(end: &Link, mac: MacAddress) -> anyhow::Result<Vec<Request>> {
    let address = IpNetwork::new(mac.link_local().into(), LINK_LOCAL_PREFIX)?;
    let generate_none = LinkChange::LinkLocal(LinkLocalOrigin::None);
    Ok(vec![
        Request::change_link(&end.name, &generate_none),
        Request::add_address(end.index, address, Dad::Skip),
    ])
}

/// Returns the metric of a new IPv6 route to a container's address. `there` is the route that the
/// kernel uses for this address now.
///
/// - If `there` is a /128 route to this address, returns a metric below the metric of `there`: the
///   kernel prefers the lower metric and, at equal metrics, the older route.
/// - If `there` leads to a larger network or to the host itself, or if no lower metric exists,
///   returns `None`: the new route gets the kernel's default metric.
///
/// A /128 route belongs to an earlier attachment with the same address, which the runtime is
/// expected to delete. ADD does not delete this route, so the kernel uses it again if ADD fails.
fn preceding(there: &Route) -> Option<u32> {
    let is_equal = there.destination.prefix() == IPV6_HOST && !there.is_local;
    let metric = there.priority.filter(|metric| is_equal && *metric > 1)?;
    Some(metric.min(IPV6_METRIC + 1) - 1)
}

/// Returns the request that adds `address` to the container's end. The kernel's direct route to the
/// network of the address has a higher metric than the one through the gateway ([`container_routes`]),
/// so the container does not use it. Only after the link was down, when the kernel has deleted all
/// other routes, does it lead to the gateway.
pub(crate) fn add_container_address(link: u32, address: IpNetwork, dad: Dad) -> Request {
    Request::add_address_with_metric(link, address, dad, DIRECT_METRIC)
}

/// Returns the container's routes: one to each gateway, and one through the gateway to the
/// container's own network. The second one precedes the direct route to this network that the
/// kernel adds. Returns an empty list for a network with a bridge.
///
/// Equivalent to `ip route add GATEWAY dev … src ADDRESS` and `ip route add NETWORK via GATEWAY dev
/// … src ADDRESS`.
pub(crate) fn container_routes(addressing: &Addressing, link: u32) -> Vec<NewRoute> {
    let mut routes = Vec::<NewRoute>::new();
    if addressing.mode != Gateway::HostEnd {
        return routes;
    }
    for ip in &addressing.ips {
        let Some(gateway) = ip.gateway else { continue };
        let network = network_of(ip.address);
        let route = |destination, gateway| NewRoute {
            gateway,
            source: Some(ip.address.ip()),
            ..NewRoute::on_link(destination, link)
        };
        let to_gateway = route(IpNetwork::from(gateway), None);
        let is_single = network == IpNetwork::from(ip.address.ip());
        let through_it = (!is_single).then(|| route(network, Some(gateway)));
        for route in [to_gateway].into_iter().chain(through_it) {
            if routes.iter().all(|it| it.destination != route.destination) {
                routes.push(route);
            }
        }
    }
    routes
}

/// Returns a message for each address of the container to which the host does not route through
/// `end`. Returns an empty list for a network with a bridge.
pub(crate) fn differences(
    host: &Connection,
    end: &Link,
    addressing: &Addressing,
) -> anyhow::Result<Vec<String>> {
    if addressing.mode != Gateway::HostEnd {
        return Ok(Vec::new());
    }
    let destinations = Vec::from_iter(hosts(&addressing.ips));
    let there = host.routes_to(&destinations)?;
    let missing = destinations.iter().zip(there).filter(|(_, route)| {
        let mut links = route.iter().flat_map(Route::links);
        !links.any(|it| it == end.index)
    });
    let message = |(to, _)| format!("the host does not route to {to} through {}", end.name);
    Ok(missing.map(message).collect())
}

/// `RT_SCOPE_HOST` of rtnetlink(7), which the Go plugin `ptp` uses, too. An IPv4 route with this
/// scope stays while its link is down.
const HOST_SCOPE: u8 = 254;

/// `IP6_RT_PRIO_USER` of the kernel: the metric of an IPv6 route that is added without one.
const IPV6_METRIC: u32 = 1024;

/// The metric of the direct route to the container's own network: higher than [`IPV6_METRIC`].
const DIRECT_METRIC: u32 = 4096;

/// Prefix length of a single IPv6 address.
const IPV6_HOST: u8 = 128;

/// Prefix length of the link-local addresses that the kernel generates (RFC 4291, 2.5.6).
const LINK_LOCAL_PREFIX: u8 = 64;
