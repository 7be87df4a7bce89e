//! Moves an interface into a VRF or out of it, with its addresses and routes.
//!
//! The kernel then takes the interface down and up again (`cycle_netdev()` in
//! drivers/net/vrf.c). It deletes the interface's routes and IPv6 addresses, and adds only the
//! routes to the subnets of the IPv4 addresses again.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::ensure;
use netlink::{Connection, Error, LinkChange, Monitor, Request, SavedAddress, SavedRoute, Wait};

/// The addresses and routes of an interface.
pub(crate) struct Port {
    /// Index of the interface.
    link: u32,
    addresses: Vec<SavedAddress>,
    /// The routes through the interface in all tables but `local`, in the order of their addition:
    /// those to gateways come first.
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

    /// Moves the interface, and restores what it had. `monitor` was opened in the sandbox.
    pub fn change(
        &self,
        connection: &Connection,
        monitor: &mut Monitor,
        to: Move,
    ) -> anyhow::Result<()> {
        let link = self.link;
        // The kernel would keep these next hops in their table, and use them again.
        let shared = self.routes.iter().filter(|it| it.is_shared(link));
        let removals: Vec<_> = shared.map(|it| it.removal(link)).collect();
        done(connection.attempt(&removals)?)?;
        let master = LinkChange::Master(to.master);
        connection.execute([Request::change_link_number(link, &master)])?;
        self.restore_addresses(connection, monitor)?;
        self.remove_others(connection, to.tables)?;
        let additions: Vec<_> = self.routes.iter().map(|it| self.addition(it, to)).collect();
        done(connection.attempt(&additions)?)?;
        let now = connection.link_by_index(link)?.master.unwrap_or_default();
        ensure!(now == to.master, "another process has moved the interface");
        Ok(())
    }

    /// Adds the IPv6 addresses that the kernel deleted, and waits until it delivers packets to them.
    fn restore_addresses(
        &self,
        connection: &Connection,
        monitor: &mut Monitor,
    ) -> anyhow::Result<()> {
        let there = connection.addresses(self.link)?;
        let is_missing = |it: &&SavedAddress| {
            there
                .iter()
                .all(|other| other.address != it.address.address)
        };
        let missing: Vec<_> = self.addresses.iter().filter(is_missing).collect();
        let additions: Vec<_> = missing.iter().map(|it| it.addition()).collect();
        done(connection.attempt(&additions)?)?;
        let works = missing.iter().filter(|it| !it.address.is_tentative);
        let works: Vec<IpAddr> = works.map(|it| it.address.address.ip()).collect();
        let wait = Wait {
            link: self.link,
            what: "the local routes of the interface's IPv6 addresses",
            deadline: Duration::from_secs(10),
        };
        let is_up = connection.link_by_index(self.link)?.is_operational;
        if is_up {
            monitor.wait_for_local_routes(connection, &wait, &works)?;
        }
        Ok(())
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
