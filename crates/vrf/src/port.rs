//! Moves an interface into a VRF or out of it, with its addresses and routes.
//!
//! The kernel then takes the interface down and up again (`cycle_netdev()` in
//! drivers/net/vrf.c). It deletes the interface's routes and IPv6 addresses.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::ensure;
use attach::{MAIN_TABLE, done, link_routes, restore_routes};
use netlink::{Carrier, Connection, Error, LinkChange, Monitor, Request};
use netlink::{SavedAddress, SavedRoute, Wait};
use serde::{Deserialize, Serialize};

/// The addresses and routes of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Index of the interface.
    pub(crate) link: u32,
    addresses: Vec<SavedAddress>,
    /// The routes through the interface, as [`link_routes`] returns them.
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
        tables: (MAIN_TABLE, MAIN_TABLE),
    };
}

impl Port {
    /// Reads addresses and routes of the interface with the index `link`.
    pub fn read(connection: &Connection, link: u32) -> Result<Self, Error> {
        Ok(Self {
            link,
            addresses: connection.saved_addresses(link)?,
            routes: link_routes(connection, link)?,
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
        let routes: Vec<_> = self.routes.iter().map(|it| self.moved(it, to)).collect();
        restore_routes(connection, (link, to.tables.1), &routes, |_| true)?;
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

    fn moved(&self, route: &SavedRoute, to: Move) -> SavedRoute {
        let (from, table) = to.tables;
        if route.route.table != from || from == table {
            return route.clone();
        }
        let part = route.through(self.link);
        part.as_ref().unwrap_or(route).in_table(table)
    }
}
