//! Moves an interface into a VRF or out of it, with its addresses and routes.
//!
//! The kernel then takes the interface down and up again (`cycle_netdev()` in
//! drivers/net/vrf.c). It deletes the interface's routes and IPv6 addresses, and adds only the
//! routes to the subnets of the IPv4 addresses again.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::ensure;
use netlink::{Carrier, Connection, Error, LinkChange, Monitor, Request};
use netlink::{SavedAddress, SavedRoute, Wait};
use serde::{Deserialize, Serialize};

/// The addresses and routes of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Index of the interface.
    pub(crate) link: u32,
    addresses: Vec<SavedAddress>,
    /// The routes through the interface in all tables but `local`, in the order of their addition:
    /// those to gateways come last.
    routes: Vec<SavedRoute>,
}

/// A move of an interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    /// Index of the VRF link that the interface joins; 0 if it leaves its VRF.
    pub master: u32,
    /// The routes of the first table move to the second one.
    pub tables: (u32, u32),
}

impl Move {
    /// Reverts a move into a VRF; the routes return to their tables.
    pub const BACK: Self = Self {
        master: 0,
        tables: (MAIN, MAIN),
    };
}

impl Port {
    /// Reads addresses and routes of the interface with the index `link`.
    pub fn read(connection: &Connection, link: u32) -> Result<Self, Error> {
        let mut routes = connection.saved_routes()?;
        routes.retain(|it| it.route.uses(link) && it.route.table != LOCAL);
        routes.sort_by_key(|it| !it.is_direct());
        Ok(Self {
            link,
            addresses: connection.saved_addresses(link)?,
            routes,
        })
    }

    /// Moves the interface, and restores what it had. What an earlier call has done stays.
    pub fn change(&self, connection: &Connection, to: Move) -> anyhow::Result<()> {
        let link = self.link;
        // The kernel would keep these next hops in their table, and use them again.
        let shared = self.routes.iter().filter(|it| it.is_shared(link));
        let removals: Vec<_> = shared.map(|it| it.removal(link)).collect();
        done(connection.attempt(&removals)?)?;
        let master = LinkChange::Master(to.master);
        connection.execute([Request::change_link_number(link, &master)])?;
        self.restore_addresses(connection)?;
        self.remove_others(connection, to.tables)?;
        self.restore_routes(connection, to)?;
        let now = connection.link_by_index(link)?.master.unwrap_or_default();
        ensure!(now == to.master, "another process has moved the interface");
        Ok(())
    }

    /// Waits until the kernel delivers packets to the IPv6 addresses. `monitor` was opened in the
    /// sandbox.
    pub fn wait(&self, connection: &Connection, monitor: &mut Monitor) -> Result<(), Error> {
        let works = self.addresses.iter().filter(|it| !it.address.is_tentative);
        let works: Vec<IpAddr> = works.map(|it| it.address.address.ip()).collect();
        let wait = Wait {
            link: self.link,
            what: "the local routes of the interface's IPv6 addresses",
            deadline: Duration::from_secs(10),
        };
        match connection.link_by_index(self.link)?.carrier {
            Carrier::On => monitor.wait_for_local_routes(connection, &wait, &works),
            Carrier::Off => Ok(()),
        }
    }

    /// Adds the IPv6 addresses that the kernel deleted, and those that it kept
    /// (`keep_addr_on_down`) or derives from the MAC but checks for duplicates again. An address
    /// that has passed this check needs no second one, because the interface was down only for a
    /// moment, and programs use the address as soon as ADD returns.
    fn restore_addresses(&self, connection: &Connection) -> anyhow::Result<()> {
        let there = connection.addresses(self.link)?;
        let now = |saved: &SavedAddress| {
            let mut there = there.iter();
            there.find(|it| it.address == saved.address.address)
        };
        let is_checked_again = |it: &&SavedAddress| {
            !it.address.is_tentative && now(it).is_some_and(|it| it.is_tentative)
        };
        let checked = self.addresses.iter().filter(is_checked_again);
        let deletions = checked.map(|it| Request::delete_address(self.link, it.address.address));
        let is_lost = |it: &&SavedAddress| now(it).is_none() || is_checked_again(it);
        let lost = self.addresses.iter().filter(is_lost);
        let requests: Vec<_> = deletions.chain(lost.map(SavedAddress::addition)).collect();
        done(connection.attempt(&requests)?)
    }

    /// Removes the routes to subnets that the kernel added, although the interface had none, because
    /// another plugin had replaced them.
    fn remove_others(&self, connection: &Connection, (from, to): (u32, u32)) -> anyhow::Result<()> {
        let had = |route: &SavedRoute| {
            self.routes.iter().any(|it| {
                let is_same = it.route.destination == route.route.destination;
                is_same && it.route.table == from && it.is_of_kernel()
            })
        };
        let mut new = connection.saved_routes()?;
        new.retain(|it| it.route.uses(self.link) && it.route.table == to && it.is_of_kernel());
        let others = new.iter().filter(|it| !had(it));
        let removals: Vec<_> = others.map(|it| it.removal(self.link)).collect();
        done(connection.attempt(&removals)?)
    }

    /// Adds the routes. The kernel accepts an IPv4 route with a source only if the source is local in
    /// the route's table or in the table `local` (`fib_valid_prefsrc`), but in a VRF it is local
    /// only in the VRF's table. So routes of other tables need it in theirs for a moment.
    fn restore_routes(&self, connection: &Connection, to: Move) -> anyhow::Result<()> {
        let elsewhere = |it: &&SavedRoute| ![to.tables.0, to.tables.1].contains(&it.route.table);
        let elsewhere = self.routes.iter().filter(elsewhere);
        let sources = elsewhere.filter_map(|it| it.local_source(self.link));
        let (mark, unmark): (Vec<_>, Vec<_>) = match to.master {
            0 => (Vec::new(), Vec::new()),
            _ => sources.unzip(),
        };
        let additions = self.routes.iter().map(|it| self.addition(it, to));
        let requests: Vec<_> = mark.into_iter().chain(additions).chain(unmark).collect();
        done(connection.attempt(&requests)?)
    }

    fn addition(&self, route: &SavedRoute, to: Move) -> Request {
        let (from, table) = to.tables;
        if route.route.table != from || from == table {
            return route.restoration(self.link);
        }
        let part = route.through(self.link);
        part.as_ref().unwrap_or(route).in_table(table).addition()
    }
}

/// Returns the first failure. What exists or is missing already is none.
fn done(outcomes: Vec<Result<(), Error>>) -> anyhow::Result<()> {
    let is_done = |it: &Error| it.is_already_exists() || it.is_not_found();
    let failures = outcomes.into_iter().filter_map(Result::err);
    cni::all(failures.filter(|it| !is_done(it)).map(|it| Err(it.into())))
}

/// Number of the table `main`.
pub(crate) const MAIN: u32 = 254;

/// Number of the table `local`, whose routes follow from the addresses.
const LOCAL: u32 = 255;
