//! The VRF link: finds, creates and deletes it.

use anyhow::{Context as _, bail};
use netlink::{Connection, Link, LinkChange, LinkKind, NewKind, NewLink, Request, found};

use crate::Config;

/// A VRF link and its routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vrf {
    /// Index of the link.
    pub index: u32,
    /// Number of the table.
    pub table: u32,
}

impl Vrf {
    /// Returns the VRF link called `name`; `None` if no link has this name.
    ///
    /// # Errors
    /// The link with this name is no VRF.
    pub fn find(connection: &Connection, name: &str) -> anyhow::Result<Option<Self>> {
        let Some(Link { index, kind, .. }) = connection.find_link(name)? else {
            return Ok(None);
        };
        match kind {
            LinkKind::Vrf(table) => Ok(Some(Self { index, table })),
            kind => bail!("the link {name} is no VRF, its kind is {kind}; choose another vrfname"),
        }
    }

    /// Returns the VRF that the configuration names.
    ///
    /// # Errors
    /// - The link with this name is no VRF.
    /// - The VRF has another table than the configuration says.
    pub fn of(connection: &Connection, config: &Config) -> anyhow::Result<Option<Self>> {
        let (name, vrf) = (&config.name, Self::find(connection, config.name.as_str())?);
        match (vrf, config.table) {
            (Some(vrf), Some(table)) if vrf.table != table => bail!(
                "VRF {name} has the table {}, not {table}, which the configuration names",
                vrf.table
            ),
            (vrf, _) => Ok(vrf),
        }
    }

    /// Returns the VRF that the configuration names, or creates it, and sets it up. The caller has
    /// locked the sandbox.
    pub fn make(connection: &Connection, config: &Config) -> anyhow::Result<Self> {
        let create = || -> anyhow::Result<Self> {
            let free = || free_table(connection);
            let table = config.table.map_or_else(free, Ok)?;
            let name = config.name.as_str();
            connection.add_link(&NewLink::of(name, NewKind::Vrf(table)))?;
            let index = connection.link(name)?.index;
            Ok(Self { index, table })
        };
        let vrf = Self::of(connection, config)?.map_or_else(create, Ok)?;
        connection.execute([Request::change_link_number(vrf.index, &LinkChange::Up)])?;
        Ok(vrf)
    }

    /// Deletes the VRF unless it has ports. The caller has locked the sandbox, so no ADD joins the VRF
    /// meanwhile.
    pub fn delete_if_empty(connection: &Connection, name: &str) -> anyhow::Result<()> {
        let Some(vrf) = Self::find(connection, name)? else {
            return Ok(());
        };
        let links = connection.links()?;
        if links.iter().any(|it| it.master == Some(vrf.index)) {
            return Ok(());
        }
        let link = links.iter().find(|it| it.index == vrf.index);
        let deleted = link.map(|it| found(connection.delete_link(it)));
        deleted.transpose()?;
        Ok(())
    }
}

fn free_table(connection: &Connection) -> anyhow::Result<u32> {
    let mut free = connection.free_tables(FIRST_TABLE, &connection.rules()?)?;
    free.next().context("no number of a routing table is free")
}

/// The first table that ADD may choose, as for the Go plugin.
const FIRST_TABLE: u32 = 1;
