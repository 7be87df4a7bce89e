//! What an attachment has in `nf_tables`: put there, taken away, compared.

use std::collections::{BTreeSet, HashMap, HashSet};

use cni::{Error, note};
use detach::Detached;
use nft::{Change, Connection, Destination, Element, Updated};

use crate::holder;
use crate::plan::HostPort;
use crate::record::{Record, Records};
use crate::table::{self, Claim};

/// Why a claim cannot be installed.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    /// Somebody else has a port that was asked for.
    #[error("{port} is held")]
    Held { port: HostPort, owner: String },
    #[error(transparent)]
    Nft(#[from] nft::Error),
}

/// Installs `claim` of `owner`. Ports of attachments that are gone are taken over. Says which ports
/// have connections that must be forgotten: those, and where anything was changed the
/// connectionless ones.
///
/// # Errors
/// Code 11: a port is held by an attachment that lives, or others do not cease to change the
/// rules. Whatever the kernel refuses.
pub(crate) fn install(
    claim: &Claim,
    owner: &str,
    records: &Records,
) -> anyhow::Result<Vec<HostPort>> {
    let connection = Connection::open()?;
    let mut stale = Vec::new();
    for _ in 0..MOST_HOLDERS {
        let mut displaced = BTreeSet::new();
        let installed = connection.update(&claim.table, || {
            displaced.clear();
            decide(&connection, claim, owner, &mut displaced)
        });
        match installed {
            Ok(updated) => {
                updated.warning(&claim.table).iter().for_each(note);
                if updated != Updated::Nothing {
                    stale.extend(claim.connectionless_ports());
                }
                for owner in displaced {
                    if holder::is_gone(records, &owner) {
                        take_over(&connection, &owner, records)?;
                    }
                }
                return Ok(stale);
            }
            Err(Refusal::Nft(error)) => return Err(coded(error)),
            Err(Refusal::Held { port, owner }) => {
                if !holder::is_gone(records, &owner) {
                    return Err(held(port, &owner).into());
                }
                note(format_args!(
                    "{port} was held by {owner}, whose sandbox is gone: taken over"
                ));
                stale.extend(take_over(&connection, &owner, records)?);
            }
        }
    }
    let reason = "others go on taking the ports that were asked for".to_owned();
    Err(Error::TryAgain { reason }.into())
}

/// What has to go for `claim`: elements of the same keys, but no port of somebody else.
fn decide(
    connection: &Connection,
    claim: &Claim,
    own: &str,
    displaced: &mut BTreeSet<String>,
) -> Result<Change, Refusal> {
    let singles = of_single_addresses(connection, claim, own)?;
    let mut delete = Vec::new();
    for element in &claim.elements {
        if let Some(port) = table::host_port(element) {
            expect_free(connection, claim, (port, own), &singles)?;
        }
        let Some(there) = connection.holder(&claim.table, element)? else {
            continue;
        };
        if there.owner != own && !table::is_exclusive(element) {
            displaced.insert(there.owner.clone());
        }
        delete.push(there);
    }
    Ok(Change {
        delete,
        add: claim.elements.clone(),
    })
}

/// Nobody but `own` has the port, on any address that it is asked for on.
fn expect_free(
    connection: &Connection,
    claim: &Claim,
    (port, own): (HostPort, &str),
    singles: &HashMap<HostPort, String>,
) -> Result<(), Refusal> {
    let every = port.of_every_address();
    let mut asked = vec![every];
    asked.extend(Some(port).filter(|port| *port != every));
    for asked in asked {
        let there = connection.holder(&claim.table, &table::port_element(asked, own))?;
        if let Some(Element { owner, .. }) = there.filter(|it| it.owner != own) {
            return Err(Refusal::Held { port, owner });
        }
    }
    match singles.get(&port) {
        None => Ok(()),
        Some(owner) => Err(Refusal::Held {
            port,
            owner: owner.clone(),
        }),
    }
}

/// Who but `own` has a port of single addresses, by that port of every address. Which addresses
/// they are cannot be looked up, so all are listed where `claim` has a port of every address.
fn of_single_addresses(
    connection: &Connection,
    claim: &Claim,
    own: &str,
) -> Result<HashMap<HostPort, String>, nft::Error> {
    let claimed = claim.elements.iter().filter_map(table::host_port);
    let every = claimed.filter(|port| port.address.is_none());
    let versions: HashSet<_> = every.map(|port| port.version).collect();
    let mut singles = HashMap::new();
    for version in versions {
        let set = table::of_single_addresses(version);
        let mut elements = connection.elements_of(&claim.table, &set)?;
        elements.retain(|it| it.owner != own);
        for element in elements {
            if let Some(port) = table::host_port(&element) {
                singles.insert(port.of_every_address(), element.owner);
            }
        }
    }
    Ok(singles)
}

/// All that an attachment has that is gone.
fn take_over(
    connection: &Connection,
    owner: &str,
    records: &Records,
) -> anyhow::Result<Vec<HostPort>> {
    let deleted = connection
        .delete(&table::table(), |it| it == owner)
        .map_err(coded)?;
    records.remove(owner)?;
    Ok(deleted.iter().filter_map(table::host_port).collect())
}

fn held(port: HostPort, owner: &str) -> Error {
    let holder = match owner {
        "" => "an element that somebody else put into nf_tables table cni-portmap",
        owner => owner,
    };
    Error::TryAgain {
        reason: format!("hostPort: {port} is held by {holder}"),
    }
}

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

/// What is not as [`install`] left it.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn differences(claim: &Claim, record: &Record) -> anyhow::Result<Vec<String>> {
    let connection = Connection::open()?;
    let mut found = connection.differences(&claim.table, &claim.elements)?;
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

fn coded(error: nft::Error) -> anyhow::Error {
    if error.is_busy() {
        let reason = error.to_string();
        return Error::TryAgain { reason }.into();
    }
    anyhow::Error::from(error).context("nf_tables")
}

/// More than the ports that one container has in practice.
const MOST_HOLDERS: usize = 100;
