//! Changes of an interface whose lease changes.

use std::net::IpAddr;

use ipnetwork::Ipv4Network;
use netlink::{Connection, Dad, Link, NewRoute, Request};

use crate::lease::Lease;

/// Replaces what the interface has of lease `old` by what lease `new` gives. `priority` is the
/// metric of the routes; 0 for none.
///
/// # Errors
/// The kernel refuses a change. The others are still tried.
pub(crate) fn change(
    connection: &Connection,
    link: &Link,
    leases: &[Option<Lease>; 2],
    priority: u32,
) -> anyhow::Result<()> {
    let leases = leases.each_ref().map(Option::as_ref);
    let requests = requests(link.index, leases, priority);
    for outcome in connection.attempt(&requests)? {
        match outcome {
            Err(error) if error.is_not_found() || error.is_already_exists() => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

/// Returns the changes in their order. With an address, the kernel may remove its routes. So a new
/// address gets all routes again.
fn requests(link: u32, [old, new]: [Option<&Lease>; 2], priority: u32) -> Vec<Request> {
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
    let deletions = routes(old, new).map(|it| Request::delete_route(&it));
    let mut requests: Vec<_> = deletions.collect();
    let of = |it: Option<Ipv4Network>| it.filter(|_| is_moved).map(ipnetwork::IpNetwork::from);
    requests.extend(of(address(old)).map(|it| Request::delete_address(link, it)));
    requests.extend(of(address(new)).map(|it| Request::add_address(link, it, Dad::Skip)));
    requests.extend(routes(new, old).map(|it| Request::add_route(&it)));
    requests
}
