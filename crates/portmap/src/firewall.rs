//! What an attachment has in `nf_tables`: taken away, compared, forgotten.

use std::collections::{BTreeSet, HashSet};

use cni::{Error, note};
use detach::Detached;
use nft::{Connection, Destination, Element};

use crate::plan::HostPort;
use crate::record::{Record, Records};
use crate::table::{self, Claim};

/// What was removed.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Whose it was, each once.
    pub owners: BTreeSet<String>,
    ports: Vec<HostPort>,
}

impl Removed {
    /// Ports to which senders would go on to send as if nothing had happened.
    pub fn connectionless_ports(&self) -> Vec<HostPort> {
        let ports = self.ports.iter().copied();
        ports.filter(|port| port.is_connectionless()).collect()
    }
}

/// Removes what `owner` has: what its record lists, or, without one, what bears its name. What is
/// not there, or cannot be, is removed.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn remove_of(owner: &str, records: &Records) -> anyhow::Result<Removed> {
    let connection = Connection::open()?;
    let table = table::table();
    let deleted = match records.read(owner) {
        Some(record) => connection.delete_known(&table, &record.elements),
        None => connection.delete(&table, |it| it == owner),
    };
    removed(&connection, deleted)
}

/// Removes the elements whose owner is doomed. What is not there, or cannot be, is removed.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn remove(is_doomed: impl Fn(&str) -> bool) -> anyhow::Result<Removed> {
    let connection = Connection::open()?;
    let deleted = connection.delete(&table::table(), is_doomed);
    removed(&connection, deleted)
}

fn removed(
    connection: &Connection,
    deleted: Result<Vec<Element>, nft::Error>,
) -> anyhow::Result<Removed> {
    let deleted = match deleted {
        Err(error) if error.is_unsupported() => return Ok(Removed::default()),
        deleted => deleted.map_err(coded)?,
    };
    if !deleted.is_empty() {
        // Nobody need wait until the kernel has freed them. Where no process can be had, we do.
        let handle = connection.handle().map_err(coded)?;
        drop(Detached::close(handle));
    }
    Ok(Removed {
        ports: deleted.iter().filter_map(table::host_port).collect(),
        owners: deleted.into_iter().map(|it| it.owner).collect(),
    })
}

/// What is not as ADD left it.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn differences(claim: &Claim, record: &Record) -> anyhow::Result<Vec<String>> {
    let connection = Connection::open()?;
    let found = connection.differences(&claim.table, &claim.elements);
    let mut found = found.map_err(coded)?;
    let wanted: HashSet<_> = claim.elements.iter().collect();
    let others = record.elements.iter().filter(|it| !wanted.contains(it));
    found.extend(others.map(|it| format!("nf_tables: {it} was not asked for")));
    Ok(found)
}

/// Asks whether the kernel can do it, and lets us.
///
/// # Errors
/// Code 50.
pub(crate) fn rehearse() -> Result<(), Error> {
    let asked = Connection::open().and_then(|connection| connection.rehearse(&table::table()));
    asked.map_err(|error| Error::Unavailable {
        reason: format!("nf_tables: {:#}", anyhow::Error::from(error)),
    })
}

/// Forgets connections to `ports`, which were made before a port led where it leads now, and
/// would go on as they began. That it cannot be done hurts only them, and is said.
pub(crate) fn forget(ports: &[HostPort]) {
    if ports.is_empty() {
        return;
    }
    let forget = || {
        let connection = Connection::open()?;
        for port in ports {
            connection.forget(Destination {
                version: port.version,
                address: port.address,
                protocol: port.protocol,
                port: port.port,
            })?;
        }
        Ok::<_, nft::Error>(())
    };
    if let Err(error) = forget() {
        let error = anyhow::Error::from(error);
        note(format_args!(
            "connections to the ports may go on as they were: {error:#}"
        ));
    }
}

pub(crate) fn coded(error: nft::Error) -> anyhow::Error {
    if error.is_busy() {
        let reason = error.to_string();
        return Error::TryAgain { reason }.into();
    }
    anyhow::Error::from(error).context("nf_tables")
}
