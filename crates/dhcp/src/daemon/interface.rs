//! Changes of an interface whose lease changes.

use std::net::IpAddr;

use attach::{MAIN_TABLE, SandboxLock, SourceRules, done, link_routes, restore_routes};
use cni::{GOING_ON, or_note};
use ipnetwork::{IpNetwork, Ipv4Network};
use netlink::{Connection, Dad, Error, Link, LinkKind, NewRoute, Request, SavedRoute};
use netns::Netns;

use crate::lease::Lease;
use crate::record::Former;

/// A change of an interface from one lease to another one.
#[derive(Debug)]
pub(crate) struct Change {
    /// The attachment's tag.
    pub owner: String,
    /// The lease that the interface has, and the one that it shall have.
    pub leases: [Option<Lease>; 2],
    /// What the interface had before it lost a lease.
    pub former: Option<Former>,
    /// Metric of new routes; 0 for none.
    pub priority: u32,
}

impl Change {
    /// Makes the change. The interface keeps what it has beside the lease, such as a routing table of
    /// `sbr`, or gets it back. Returns the first refusal of a route: the others are still tried, and
    /// the address is usable without them.
    ///
    /// # Errors
    /// The kernel refuses a change of the address, or the rules of `sbr` cannot be changed.
    pub fn make(
        &self,
        connection: &Connection,
        link: &Link,
    ) -> anyhow::Result<Option<anyhow::Error>> {
        let [old, new] = self.leases.each_ref().map(Option::as_ref);
        let [former, address] = [old, new].map(|lease| lease.map(|it| it.address));
        let is_moved = former != address;
        if !is_moved && old.map(|it| &it.routes) == new.map(|it| &it.routes) {
            return Ok(None);
        }
        // Without it, sbr or vrf could change rules and routes meanwhile.
        let lock = Netns::own().map_err(Into::into);
        let _lock = or_note(lock.and_then(|it| SandboxLock::take(&it)), GOING_ON);
        let mut ended = ipv4_routes(connection, link);
        ended.retain(|it| old.is_some_and(|old| old.has(it)));
        ended.retain(|it| is_moved || !new.is_some_and(|new| new.has(it)));
        let removals: Vec<_> = ended.iter().map(|it| it.removal(link.index)).collect();
        let removed = done(connection.attempt(&removals)?);
        if is_moved {
            let deleted = former.map(|it| Request::delete_address(link.index, it.into()));
            let add = |it: Ipv4Network| Request::add_address(link.index, it.into(), Dad::Skip);
            let requests: Vec<_> = deleted.into_iter().chain(address.map(add)).collect();
            done(connection.attempt(&requests)?)?;
            self.move_rules(connection)?;
        }
        let restored = new.map(|new| self.restore(connection, link, new));
        Ok(removed.and(restored.unwrap_or(Ok(()))).err())
    }

    /// Gives rules of `sbr` the new address, or the former lease's again.
    fn move_rules(&self, connection: &Connection) -> anyhow::Result<()> {
        let former = self.former.as_ref().map(|it| &it.lease);
        let [from, to] = self.leases.each_ref().map(|it| it.as_ref().or(former));
        match from.zip(to) {
            Some((from, to)) if from.address.ip() != to.address.ip() => {
                let sources = [from, to].map(|it| IpAddr::from(it.address.ip()));
                SourceRules::replace_source(&self.owner, connection, sources)
            }
            _ => Ok(()),
        }
    }

    /// Gives the interface the routes that it had, with the addresses of `new`, and the routes of `new`
    /// to other destinations.
    fn restore(&self, connection: &Connection, link: &Link, new: &Lease) -> anyhow::Result<()> {
        let former = self.former.as_ref().map(|it| it.routes_for(new));
        let former = former.filter(|it| !it.is_empty());
        let wanted = former.unwrap_or_else(|| ipv4_routes(connection, link));
        let place = (link.index, kernel_table(connection, link)?);
        let is_subnet = |it: &SavedRoute| {
            let IpNetwork::V4(destination) = it.route.destination else {
                return false;
            };
            destination.prefix() == new.address.prefix() && destination.contains(new.address.ip())
        };
        let restored = restore_routes(connection, place, &wanted, is_subnet);
        // The table of sbr or vrf, which got the kernel's route to the subnet.
        let mut of_kernel = wanted.iter().filter(|it| it.is_of_kernel());
        let table = of_kernel.next().map(|it| it.route.table);
        let has = |destination| wanted.iter().any(|it| it.route.destination == destination);
        let mut routes: Vec<_> = new.routes.iter().filter(|it| !has(it.0.into())).collect();
        // Next hops are reachable before the routes that need them exist.
        routes.sort_by_key(|(_, gateway)| gateway.is_some());
        let additions = routes.into_iter().map(|(destination, gateway)| {
            Request::add_route(&NewRoute {
                gateway: gateway.map(IpAddr::from),
                priority: Some(self.priority).filter(|it| *it != 0),
                table,
                ..NewRoute::on_link((*destination).into(), link.index)
            })
        });
        let added = done(connection.attempt(&additions.collect::<Vec<_>>())?);
        cni::all([restored, added])
    }
}

/// Returns the table to which the kernel adds routes to the subnets of addresses.
fn kernel_table(connection: &Connection, link: &Link) -> Result<u32, Error> {
    let master = link.master.map(|it| connection.link_by_index(it));
    Ok(match master.transpose()?.map(|it| it.kind) {
        Some(LinkKind::Vrf(table)) => table,
        _ => MAIN_TABLE,
    })
}

/// Returns the IPv4 routes of the interface, those of the kernel first. A process in the sandbox may
/// have added any number: then returns only a part, or none.
pub(crate) fn ipv4_routes(connection: &Connection, link: &Link) -> Vec<SavedRoute> {
    let routes = link_routes(connection, link.index);
    let mut routes = or_note(routes, GOING_ON).unwrap_or_default();
    routes.retain(|it| it.route.destination.is_ipv4());
    routes.sort_by_key(|it| !it.is_of_kernel());
    routes.truncate(MOST);
    routes
}

/// Largest number of routes of an interface that the daemon keeps.
const MOST: usize = 256;
