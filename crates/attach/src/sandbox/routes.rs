//! The routes that a sandbox needs.

use cni::result::Route;
use netlink::{Link, NewRoute, network_of};

use crate::addressing::{MAIN_TABLE, next_hop};
use crate::{Addressing, routed};

/// Returns the routes that the sandbox needs, in the order of their addition. The routes to the
/// gateways precede the others, because the kernel accepts a route only if its next hop is
/// reachable.
pub(super) fn wanted_routes(addressing: &Addressing, link: &Link) -> Vec<NewRoute> {
    let reported = addressing.routes.iter();
    let reported = reported.map(|route| new_route(route, addressing, link));
    let own = routed::container_routes(addressing, link.index);
    own.into_iter().chain(reported).collect()
}

/// Returns `route` with a higher metric than all routes of `there` to the same destination.
pub(super) fn after(route: &NewRoute, there: &[netlink::Route]) -> NewRoute {
    let destination = network_of(route.destination);
    let table = route.table.unwrap_or(MAIN_TABLE);
    let same = there.iter();
    let same = same.filter(|it| network_of(it.destination) == destination && it.table == table);
    let highest = same.filter_map(|it| it.priority).max();
    NewRoute {
        priority: highest.map(|it| it.saturating_add(1)),
        ..route.clone()
    }
}

fn new_route(route: &Route, addressing: &Addressing, link: &Link) -> NewRoute {
    NewRoute {
        gateway: next_hop(route, &addressing.ips),
        mtu: route.mtu,
        advmss: route.advmss,
        // Plugins write 0 for the kernel's default priority and the kernel's default table.
        priority: route.priority.filter(|priority| *priority != 0),
        table: route.table.filter(|table| *table != 0),
        scope: route.scope,
        ..NewRoute::on_link(route.dst, link.index)
    }
}
