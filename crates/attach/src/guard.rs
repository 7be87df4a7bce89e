//! Adds, compares and removes the `nf_tables` elements of an attachment.
//!
//! All attachments share the tables, sets and base chains, so these stay after DEL. Each attachment
//! adds elements to the sets. The comment of each element is the attachment's tag
//! ([`cni::Attachment::owner`]). DEL finds the elements by this comment.

use std::iter;

use anyhow::Context as _;
use cni::result::IpConfig;
use cni::{Error, note, note_failure};
use nft::{Change, Connection, Table, Updated};

use crate::protection::Subject;
use crate::standby::{self, Precedence};
use crate::{Masquerade, Protection, frames, masquerade};

/// What `nf_tables` does for each veth pair of a network, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// Whether to drop frames that a container sends into the bridge with a source MAC other than
    /// the one that ADD gave it.
    pub checks_mac: bool,
    /// Whether to drop duplicate frames: a promiscuous bridge delivers a frame to its destination
    /// and also gives the host a copy, which the host sends through the bridge again.
    pub drops_copies: bool,
    /// How to masquerade; `None` if the configuration does not request it.
    pub masquerade: Option<Masquerade>,
}

impl Guard {
    /// Returns whether the attachments of the network need any `nf_tables` elements.
    pub fn is_needed(&self) -> bool {
        self.checks_mac || self.drops_copies || self.masquerade.is_some()
    }

    /// Returns the `nf_tables` elements that the attachment `subject` needs, grouped by table. The
    /// list is empty if it needs none.
    ///
    /// # Errors
    /// The sysctls that say whether netfilter sees bridged frames cannot be read.
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

    /// Checks by a dry run that the kernel can create the tables that the network needs.
    ///
    /// # Errors
    /// Code 50: the dry run fails, for example because the kernel lacks a part of `nf_tables`.
    pub fn probe(&self) -> Result<(), Error> {
        if !self.is_needed() {
            return Ok(());
        }
        let has_frames = self.checks_mac || self.drops_copies;
        let masquerade = self.masquerade.iter().map(|it| it.table(iter::empty()).0);
        dry_run(masquerade.chain(has_frames.then(frames::table)))
    }
}

/// Checks by a dry run that the kernel can create or repair `tables`, and permits this process to do
/// so.
///
/// # Errors
/// Code 50: the dry run fails, for example because the kernel lacks a part of `nf_tables`.
pub fn dry_run(tables: impl IntoIterator<Item = Table>) -> Result<(), Error> {
    let mut tables = tables.into_iter();
    let tried =
        Connection::open().and_then(|connection| tables.try_for_each(|it| connection.dry_run(&it)));
    tried.map_err(|error| Error::unavailable(coded(error)))
}

/// Adds the elements of `protections`, after it has created or repaired their tables, sets, chains
/// and rules. `port` is the name of the host's end of the veth pair. Returns what changed.
///
/// An element replaces an existing one with the same key, with one exception. If the key is a
/// container's address, and the existing element belongs to another attachment whose veth pair
/// still exists, `precedence` decides which attachment gets the address.
///
/// # Errors
/// - Code 11: other processes keep changing the rules.
/// - Code 100: the kernel refuses a request.
pub(crate) fn install(
    protections: &[Protection],
    port: &str,
    precedence: Precedence,
) -> anyhow::Result<Updated> {
    let mut updated = Updated::Nothing;
    if protections.is_empty() {
        return Ok(updated);
    }
    let connection = Connection::open()?;
    for protection in protections {
        let change = || standby::change(&connection, protection, port, precedence);
        let this = connection
            .update(&protection.table, change)
            .map_err(coded_source)?;
        this.warning(&protection.table).iter().for_each(note);
        updated = updated.max(this);
    }
    Ok(updated)
}

/// Removes the elements of `protections` if `is_gone` returns true. RELOAD, the verb of this suite
/// that restores elements, calls this function if a DEL or GC has deleted the attachment's veth pair
/// or retired its record. `is_gone` returns whether this is so.
///
/// If another process changes the rules meanwhile, the transaction is repeated, and each attempt
/// calls `is_gone` again. So the elements of a concurrent ADD stay: that ADD creates its link or
/// record before its elements, so `is_gone` returns false.
///
/// # Errors
/// - Code 11: other processes keep changing the rules.
/// - Code 100: the kernel refuses a request.
/// - `is_gone` fails.
pub fn take_back(
    protections: &[Protection],
    is_gone: impl Fn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let connection = Connection::open()?;
    for Protection { table, elements } in protections {
        let updated = connection.update(table, || {
            let known = if is_gone()? { elements.as_slice() } else { &[] };
            let own = connection.still_held(table, known)?;
            Ok::<_, anyhow::Error>(Change::of(own, Vec::new()))
        });
        updated.map_err(coded_source)?;
        connection
            .delete_chains_of(table, elements)
            .map_err(coded)?;
    }
    Ok(())
}

/// Deletes the conntrack entries of connections from `ips` that have no answer yet and whose source
/// address the host does not translate. These connections began while the masquerade rules were
/// missing, so no reply can reach the container. After the deletion, the kernel masquerades their
/// next packets. The function only writes an error to standard error, because it affects only these
/// connections.
pub(crate) fn forget_unanswered(ips: &[IpConfig]) {
    let forget = || {
        let connection = Connection::open()?;
        let mut addresses = ips.iter().map(|ip| ip.address.ip());
        addresses.try_for_each(|it| connection.forget_unanswered(it))
    };
    let consequence = "connections from before the masquerading may stay unanswered";
    note_failure(forget().context(consequence));
}

/// Returns the two tables of this crate, without elements: one drops frames, one masquerades.
pub fn tables() -> [Table; 2] {
    [frames::table(), masquerade::table()]
}

/// A removal of elements from several tables. It uses one socket for all tables, because the kernel
/// takes long to close a socket after a deletion.
pub struct Removal {
    /// `None` if the kernel has no netfilter, and so no elements.
    connection: Option<Connection>,
    tables: [Table; 2],
    /// Tags of the attachments whose elements were removed.
    owners: Vec<String>,
}

impl Removal {
    /// Opens the socket, unless the kernel has no netfilter.
    ///
    /// # Errors
    /// The socket cannot be opened for another reason.
    pub fn start(tables: [Table; 2]) -> anyhow::Result<Self> {
        Ok(Self {
            connection: Connection::open_if_supported().map_err(coded)?,
            tables,
            owners: Vec::new(),
        })
    }

    /// Removes the elements whose tag `is_stale` accepts. A second attachment may have the address
    /// of a removed element and stand by for it. Then this function adds an element with the
    /// address for that attachment. It is no error if an element is missing, or if the kernel does
    /// not support a table.
    ///
    /// # Errors
    /// - Code 11: other processes keep changing the rules.
    /// - Code 100: the kernel refuses a request.
    pub fn remove(&mut self, is_stale: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let Some(connection) = &self.connection else {
            return Ok(());
        };
        for table in &self.tables {
            let removed = standby::remove(connection, table, &is_stale).map_err(coded_source)?;
            self.owners.extend(removed.into_iter().map(|it| it.owner));
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

/// Compares the kernel's `nf_tables` with the state that [`install`] creates for `protections`.
/// `port` is the name of the host's end of the veth pair. Returns a message for each difference. If
/// the attachment stands by for an address, that is no difference.
pub(crate) fn differences(protections: &[Protection], port: &str) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    if protections.is_empty() {
        return Ok(found);
    }
    let connection = Connection::open()?;
    for Protection { table, elements } in protections {
        if connection.differences(table, elements)?.is_empty() {
            continue;
        }
        let elements = standby::present(&connection, table, elements, port)?;
        found.extend(connection.differences(table, &elements)?);
    }
    Ok(found)
}

/// Converts an `nf_tables` error to an error of the plugin: with code 11 if other processes keep
/// changing the rules, and with code 100 in all other cases.
pub fn coded(error: nft::Error) -> anyhow::Error {
    if error.is_busy() {
        return Error::TryAgain(error.to_string()).into();
    }
    anyhow::Error::from(error).context("nf_tables")
}

/// Converts an `nf_tables` error as [`coded`] does. Returns any other error unchanged.
fn coded_source(error: anyhow::Error) -> anyhow::Error {
    error.downcast().map_or_else(|other| other, coded)
}
