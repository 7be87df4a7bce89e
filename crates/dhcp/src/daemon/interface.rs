//! Changes of an interface whose lease changes.

use std::net::IpAddr;

use ipnetwork::Ipv4Network;
use netlink::{Connection, Dad, Error, Link, NewRoute, Request};

use crate::lease::Lease;

/// Replaces what the interface has of lease `old` by what lease `new` gives. `priority` is the
/// metric of the routes; 0 for none. Returns the first refusal of a route: the others are still
/// tried, and the address is usable without them.
///
/// # Errors
/// The kernel refuses a change of the address.
pub(crate) fn change(
    connection: &Connection,
    link: &Link,
    leases: &[Option<Lease>; 2],
    priority: u32,
) -> Result<Option<Error>, Error> {
    let leases = leases.each_ref().map(Option::as_ref);
    let [former, addresses, routes] = requests(link.index, leases, priority);
    let refused = refusal(connection, &former)?;
    refusal(connection, &addresses)?.map_or(Ok(()), Err)?;
    Ok(refused.or(refusal(connection, &routes)?))
}

/// Attempts all `requests`, and returns the first refusal of one that still has an effect.
fn refusal(connection: &Connection, requests: &[Request]) -> Result<Option<Error>, Error> {
    let mut refusals = connection
        .attempt(requests)?
        .into_iter()
        .filter_map(Result::err);
    Ok(refusals.find(|it| !it.is_not_found() && !it.is_already_exists()))
}

/// Returns the changes in their order: former routes, addresses, new routes. With an address, the
/// kernel may remove its routes. So a new address gets all routes again.
fn requests(link: u32, [old, new]: [Option<&Lease>; 2], priority: u32) -> [Vec<Request>; 3] {
    let address = |lease: Option<&Lease>| lease.map(|it| it.address);
    let is_moved = address(old) != address(new);
    let routes = |lease: Option<&Lease>, other: Option<&Lease>| {
        let mut routes = lease.map(|it| it.routes.clone()).unwrap_or_default();
        let kept = other.filter(|_| !is_moved);
        routes.retain(|it| !kept.is_some_and(|lease| lease.routes.contains(it)));
        // Next hops are reachable before the routes that need them exist.
        routes.sort_by_key(|(_, gateway)| gateway.is_some());
        let routes = routes.into_iter();
        routes.map(move |(destination, gateway)| NewRoute {
            gateway: gateway.map(IpAddr::from),
            priority: Some(priority).filter(|it| *it != 0),
            ..NewRoute::on_link(destination.into(), link)
        })
    };
    let former = routes(old, new).map(|it| Request::delete_route(&it));
    let of = |it: Option<Ipv4Network>| it.filter(|_| is_moved).map(ipnetwork::IpNetwork::from);
    let deleted = of(address(old)).map(|it| Request::delete_address(link, it));
    let added = of(address(new)).map(|it| Request::add_address(link, it, Dad::Skip));
    let routes = routes(new, old).map(|it| Request::add_route(&it));
    [
        former.collect(),
        deleted.into_iter().chain(added).collect(),
        routes.collect(),
    ]
}
