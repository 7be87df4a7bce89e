//! What an attachment puts into `nf_tables`, and how it is taken out again.
//!
//! Tables, chains and rules are the same for everybody and stay; an attachment adds elements
//! that bear its owner, by which alone they are found again.

use std::os::fd::OwnedFd;

use cni::result::IpConfig;
use cni::{Error, note};
use netlink::{Link, MacAddress, Removal};
use nft::{Change, Connection, Element, Table, Updated};

use crate::config::{Config, MacCheck, PortMode};
use crate::{frames, masquerade};

/// What an attachment adds to which table.
#[derive(Debug)]
pub(crate) struct Protection {
    /// As it shall be.
    pub table: Table,
    /// For its sets.
    pub elements: Vec<Element>,
}

/// What an attachment's elements are made of.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    /// The bridge.
    pub bridge: &'a Link,
    /// The host's end, by its name.
    pub port: &'a str,
    /// The MAC of the container's end.
    pub mac: MacAddress,
    /// The container's addresses.
    pub ips: &'a [IpConfig],
    /// [`cni::Attachment::owner`].
    pub owner: &'a str,
}

/// An attachment of such a network has something there.
pub(crate) fn is_needed(config: &Config) -> bool {
    config.mac_check == MacCheck::Drop
        || config.port_mode == PortMode::Promiscuous
        || config.masquerade.is_some()
}

/// All that `config` asks for `subject`; nothing where it asks for nothing.
///
/// # Errors
/// A sysctl that cannot be read.
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

/// Installs all of them; what was left of another attachment with the same keys makes room. Says
/// whether there was anything to do.
///
/// # Errors
/// Code 11 where others do not cease to change the rules; whatever the kernel refuses.
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

/// Removes what [`install`] added for an attachment that is gone. Whether it still is, is asked in the
/// same generation of the rules, since an ADD beside this makes its pair before its elements.
///
/// # Errors
/// As [`install`], and those of `is_gone`.
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

/// Forgets connections that a container began while nobody masqueraded it, and that would go on
/// unanswered. That it cannot be done hurts only them, and is said.
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

/// What was removed.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Whose elements, each once or a few times.
    pub owners: Vec<String>,
    /// What takes long to close, if anything was removed.
    pub socket: Option<OwnedFd>,
}

impl Removed {
    /// Closes the socket without waiting: by the process of `removal`, or by one of its own.
    pub fn close(self, removal: Option<Removal>) {
        match (self.socket, removal) {
            (Some(socket), Some(removal)) => removal.close(socket),
            (Some(socket), None) => detach::close_later(socket),
            (None, _) => {}
        }
    }
}

/// Removes the elements whose owner is doomed. What is not there, or cannot be, is removed.
///
/// # Errors
/// Whatever the kernel refuses.
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

/// What is not as [`install`] left it.
///
/// # Errors
/// Whatever the kernel refuses.
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

/// Asks whether what `config` needs can be had.
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
