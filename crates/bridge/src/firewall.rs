//! Adds and removes an attachment's elements in `nf_tables`.
//!
//! Tables, chains and rules are the same for all attachments and stay. An attachment adds elements
//! that are tagged with its owner, and finds them by the owner only.

use std::os::fd::OwnedFd;

use cni::result::IpConfig;
use cni::{Error, note};
use netlink::{Link, MacAddress, Removal};
use nft::{Change, Connection, Element, Table, Updated};

use crate::config::{Config, MacCheck, PortMode};
use crate::{frames, masquerade};

/// Elements of an attachment, with their table.
#[derive(Debug)]
pub struct Protection {
    /// Description of the table.
    pub table: Table,
    /// Elements of its sets.
    pub elements: Vec<Element>,
}

/// Inputs for an attachment's elements.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The bridge.
    pub bridge: &'a Link,
    /// Name of the host's end.
    pub port: &'a str,
    /// MAC of the container's end.
    pub mac: MacAddress,
    /// The container's addresses.
    pub ips: &'a [IpConfig],
    /// [`cni::Attachment::owner`].
    pub owner: &'a str,
}

/// Returns whether attachments of the network have elements.
pub(crate) fn is_needed(config: &Config) -> bool {
    config.mac_check == MacCheck::Drop
        || config.port_mode == PortMode::Promiscuous
        || config.masquerade.is_some()
}

/// Returns the elements that `config` requires for `subject`; empty if it requires none.
///
/// # Errors
/// A sysctl cannot be read.
pub(crate) fn wanted(config: &Config, subject: &Subject<'_>) -> anyhow::Result<Vec<Protection>> {
    let mut elements = Vec::new();
    if config.mac_check == MacCheck::Drop {
        elements.extend(frames::sources(subject));
    }
    if config.port_mode == PortMode::Promiscuous {
        elements.extend(frames::duplicates(subject)?);
    }
    let frames = Protection {
        table: frames::table(),
        elements,
    };
    let masquerade = config.masquerade.iter().map(|it| it.protection(subject));
    let mut wanted: Vec<_> = masquerade.chain([frames]).collect();
    wanted.retain(|protection| !protection.elements.is_empty());
    Ok(wanted)
}

/// Adds all elements; leftover elements of other attachments with the same keys are replaced.
/// Returns what changed.
///
/// # Errors
/// Code 11 if other processes keep changing the rules; refusals of the kernel.
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

/// Removes the elements of [`install`] if the attachment is gone. `is_gone` is checked in the same
/// generation of the rules, because a concurrent ADD creates its pair before its elements.
///
/// # Errors
/// As [`install`], and errors of `is_gone`.
pub(crate) fn take_back(
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
                    change
                        .delete
                        .extend(there.filter(|it| it.owner == element.owner));
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

/// Forgets connections that a container began without masquerading and that would stay unanswered.
/// A failure affects only these connections and is reported.
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
            "connections that nobody masqueraded may go on as they were: {error:#}"
        ));
    }
}

/// Removed elements.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Owners of the elements; an owner may occur several times.
    pub owners: Vec<String>,
    /// The socket, which takes long to close, if anything was removed.
    pub socket: Option<OwnedFd>,
}

impl Removed {
    /// Passes the socket to another process, which closes it: the process of `removal`, or a
    /// separate one.
    pub fn close(self, removal: Option<Removal>) {
        match (self.socket, removal) {
            (Some(socket), Some(removal)) => removal.close(socket),
            (Some(socket), None) => detach::close_later(socket),
            (None, _) => {}
        }
    }
}

/// Removes the elements whose owner `is_doomed`. Absent elements, and those that the kernel cannot
/// have, count as removed.
///
/// # Errors
/// Refusals of the kernel.
pub(crate) fn remove(is_doomed: impl Fn(&str) -> bool) -> anyhow::Result<Removed> {
    let connection = Connection::open()?;
    let mut owners = Vec::new();
    for table in [frames::table(), masquerade::table()] {
        match connection.delete(&table, &is_doomed) {
            Ok(deleted) => owners.extend(deleted.into_iter().map(|element| element.owner)),
            Err(error) if error.is_unsupported() => {}
            Err(error) => return Err(coded(error)),
        }
    }
    owners.dedup();
    let socket = (!owners.is_empty()).then(|| connection.handle());
    Ok(Removed {
        owners,
        socket: socket.transpose()?,
    })
}

/// Returns messages about what [`install`] would change.
///
/// # Errors
/// Refusals of the kernel.
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

/// Checks that the kernel has the `nf_tables` that `config` needs.
///
/// # Errors
/// Code 50.
pub(crate) fn probe(config: &Config) -> Result<(), Error> {
    if !is_needed(config) {
        return Ok(());
    }
    let probed = Connection::open().and_then(|connection| connection.probe());
    probed.map_err(|error| Error::Unavailable {
        reason: format!("nf_tables: {:#}", anyhow::Error::from(error)),
    })
}

fn coded(error: nft::Error) -> anyhow::Error {
    if error.is_busy() {
        let reason = error.to_string();
        return Error::TryAgain { reason }.into();
    }
    anyhow::Error::from(error).context("nf_tables")
}
