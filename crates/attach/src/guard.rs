//! The elements of an attachment in `nf_tables`.
//!
//! All attachments share the tables, chains and rules, so these stay after DEL. Each attachment
//! adds elements to sets. The comment of each element is the attachment's tag
//! ([`cni::Attachment::owner`]). DEL finds the elements by this comment.

use std::iter;

use cni::result::IpConfig;
use cni::{Error, note};
use nft::{Change, Connection, Table, Updated};

use crate::masquerade::Masquerade;
use crate::protection::{Protection, Subject};
use crate::{frames, masquerade};

/// The protection of a veth pair in `nf_tables`, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// Drops frames from another MAC than the container's when they enter the bridge.
    pub checks_mac: bool,
    /// Drops the host's copies of frames that a promiscuous bridge itself delivers to containers.
    pub drops_copies: bool,
    /// Masquerading, if configured.
    pub masquerade: Option<Masquerade>,
}

impl Guard {
    /// Returns whether the network's attachments need any elements.
    pub fn is_needed(&self) -> bool {
        self.checks_mac || self.drops_copies || self.masquerade.is_some()
    }

    /// Returns the elements of the attachment `subject`, grouped by table. The list is empty if the
    /// network needs no elements.
    ///
    /// # Errors
    /// A sysctl cannot be read.
    pub(crate) fn protections(&self, subject: &Subject<'_>) -> anyhow::Result<Vec<Protection>> {
        let mut elements = Vec::new();
        if self.checks_mac {
            elements.extend(frames::sources(subject));
        }
        if self.drops_copies {
            elements.extend(frames::duplicates(subject)?);
        }
        let frames = Protection {
            table: frames::table(),
            elements,
        };
        let masquerade = self.masquerade.iter().map(|it| it.protection(subject));
        let mut wanted: Vec<_> = masquerade.chain([frames]).collect();
        wanted.retain(|protection| !protection.elements.is_empty());
        Ok(wanted)
    }

    /// Checks by a dry run whether the kernel could create the tables of the network; changes nothing.
    ///
    /// # Errors
    /// Code 50: the kernel lacks a part of `nf_tables`, or this process has no access to
    /// `nf_tables`.
    pub fn probe(&self) -> Result<(), Error> {
        if !self.is_needed() {
            return Ok(());
        }
        let has_frames = self.checks_mac || self.drops_copies;
        let masquerade = self.masquerade.iter().map(|it| it.table(iter::empty()).0);
        let mut tables = masquerade.chain(has_frames.then(frames::table));
        let probed = Connection::open()
            .and_then(|connection| tables.try_for_each(|table| connection.dry_run(&table)));
        probed.map_err(|error| {
            let error = anyhow::Error::from(error);
            Error::Unavailable(format!("nf_tables: {error:#}"))
        })
    }
}

/// Adds the elements, and the sets, chains and rules that are missing in their tables. An element
/// replaces an existing one with the same key. Returns what changed.
///
/// # Errors
/// - Code 11: other processes keep changing the rules.
/// - Code 100: the kernel refuses a request.
pub(crate) fn install(protections: &[Protection]) -> anyhow::Result<Updated> {
    let mut updated = Updated::Nothing;
    if protections.is_empty() {
        return Ok(updated);
    }
    let connection = Connection::open()?;
    for Protection { table, elements } in protections {
        let this = connection.put(table, elements).map_err(coded)?;
        this.warning(table).iter().for_each(note);
        updated = updated.max(this);
    }
    Ok(updated)
}

/// Removes the elements of `protections` if the attachment's veth pair does not exist: if `is_gone`
/// returns true. The function calls `is_gone` in each attempt of the transaction, so it never
/// removes the elements of a concurrent ADD, which creates its veth pair before its elements.
///
/// # Errors
/// - Code 11: other processes keep changing the rules.
/// - Code 100: the kernel refuses a request, or `is_gone` fails.
pub fn take_back(
    protections: &[Protection],
    is_gone: impl Fn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let connection = Connection::open()?;
    for Protection { table, elements } in protections {
        connection.update(table, || {
            let mut change = Change::default();
            if is_gone()? {
                for element in elements {
                    let there = connection.holder(table, element)?;
                    let own = there.filter(|it| it.owner == element.owner);
                    change.delete.extend(own);
                }
            }
            Ok::<_, anyhow::Error>(change)
        })?;
        connection
            .delete_chains_of(table, elements)
            .map_err(coded)?;
    }
    Ok(())
}

/// Deletes the tracked connections of a container that have no answer yet and whose source address
/// the host does not translate. They began while no rule masqueraded the container's packets, so no
/// reply can reach the container. The kernel then masquerades the next packets of these
/// connections. If the deletion fails, only these connections are affected, so the function logs
/// the error.
pub(crate) fn forget_unanswered(ips: &[IpConfig]) {
    let forget = || {
        let connection = Connection::open()?;
        for ip in ips {
            connection.forget_unanswered(ip.address.ip())?;
        }
        Ok::<_, nft::Error>(())
    };
    if let Err(error) = forget() {
        let error = anyhow::Error::from(error);
        note(format_args!(
            "connections from before the masquerading may stay unanswered: {error:#}"
        ));
    }
}

/// Returns the tables of this crate, with their sets and rules.
pub fn tables() -> [Table; 2] {
    [frames::table(), masquerade::table()]
}

/// A removal of elements from several tables. It uses one socket for all tables, because the kernel
/// takes long to close a socket after a deletion.
pub struct Removal {
    /// `None` if the kernel has no netfilter.
    connection: Option<Connection>,
    tables: [Table; 2],
    /// Owners of removed elements.
    owners: Vec<String>,
}

impl Removal {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel opened no socket.
    pub fn start(tables: [Table; 2]) -> anyhow::Result<Self> {
        let connection = match Connection::open() {
            Err(error) if error.is_unsupported() => None,
            connection => Some(connection.map_err(coded)?),
        };
        Ok(Self {
            connection,
            tables,
            owners: Vec::new(),
        })
    }

    /// Removes the elements for whose owner `is_stale` returns true. A missing element is no error,
    /// nor is a table that the kernel does not support.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn remove(&mut self, is_stale: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let Some(connection) = &self.connection else {
            return Ok(());
        };
        for table in &self.tables {
            match connection.delete(table, &is_stale) {
                Err(error) if error.is_unsupported() => {}
                deleted => {
                    let deleted = deleted.map_err(coded)?.into_iter();
                    self.owners.extend(deleted.map(|it| it.owner));
                }
            }
        }
        Ok(())
    }

    /// Closes the socket. Returns the tags of the attachments whose elements were removed. A tag
    /// may occur several times.
    pub fn finish(mut self) -> Vec<String> {
        if let Some(connection) = self.connection {
            connection.close();
        }
        self.owners.dedup();
        self.owners
    }
}

/// Compares `nf_tables` with the state that [`install`] creates. Returns the differences.
///
/// # Errors
/// The kernel refuses a request.
pub(crate) fn differences(protections: &[Protection]) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    if protections.is_empty() {
        return Ok(found);
    }
    let connection = Connection::open()?;
    for Protection { table, elements } in protections {
        found.extend(connection.differences(table, elements)?);
    }
    Ok(found)
}

/// Converts an error of `nf_tables`. The result has code 11 if other processes keep changing the
/// rules, and code 100 otherwise.
pub fn coded(error: nft::Error) -> anyhow::Error {
    if error.is_busy() {
        return Error::TryAgain(error.to_string()).into();
    }
    anyhow::Error::from(error).context("nf_tables")
}
