//! Removing elements, whose ports pass to attachments of the same container that stand by for them.
//!
//! Port and successor change in one transaction. Attachments may begin or cease to stand by meanwhile, so the
//! list of them is read before the transaction and again after it: one that begins later sees the port
//! free by itself, and one that ceases removes its file before it looks for what it has.

use std::collections::HashSet;

use cni::Attachment;
use nft::{Change, Connection, Element, IpVersion, Table};

use crate::element::{concerned_port, host_port};
use crate::plan::HostPort;
use crate::record::{Record, Records};
use crate::standby::Standby;
use crate::table;

/// What became of elements.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// What is there no more.
    pub elements: Vec<Element>,
    /// The ports of it that another attachment serves now.
    pub passed_on: HashSet<HostPort>,
}

/// An attachment that stands by.
#[derive(Debug, PartialEq)]
struct Heir {
    owner: String,
    record: Record,
}

/// Removes those of `known` that still are whose they were, where these owners were just `standing` by.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn remove(
    connection: &Connection,
    records: &Records,
    (known, standing): (Vec<Element>, Vec<String>),
) -> Result<Removed, nft::Error> {
    let heirs = heirs(records, &known, standing);
    let mut removal = Removal::new(connection, records, known);
    if heirs.is_empty() {
        let deleted = connection.delete_known(&table::table(), &removal.known)?;
        removal.removed.elements = deleted;
    } else {
        removal.step(&heirs, || true)?;
    }
    removal.finish(heirs)
}

/// As [`remove`], as long as `are_meant`, which is asked by each attempt of the transaction.
///
/// # Errors
/// As [`remove`].
pub(crate) fn remove_while(
    connection: &Connection,
    records: &Records,
    (known, are_meant): (Vec<Element>, impl Fn() -> bool),
) -> Result<Removed, nft::Error> {
    let heirs = heirs(records, &known, Standby::default().owners());
    let mut removal = Removal::new(connection, records, known);
    removal.step(&heirs, are_meant)?;
    removal.finish(heirs)
}

struct Removal<'a> {
    connection: &'a Connection,
    records: &'a Records,
    /// What is to be removed.
    known: Vec<Element>,
    /// What successors were given.
    passed: Vec<Element>,
    removed: Removed,
}

impl<'a> Removal<'a> {
    fn new(connection: &'a Connection, records: &'a Records, known: Vec<Element>) -> Self {
        Self {
            connection,
            records,
            known,
            passed: Vec::new(),
            removed: Removed::default(),
        }
    }

    /// Until nothing stands by that did not a moment before, and the other way round.
    fn finish(mut self, mut heirs: Vec<Heir>) -> Result<Removed, nft::Error> {
        while !self.removed.elements.is_empty() {
            let standing = Standby::default().owners();
            let now = self::heirs(self.records, &self.removed.elements, standing);
            if now
                .iter()
                .map(|it| &it.owner)
                .eq(heirs.iter().map(|it| &it.owner))
            {
                break;
            }
            let stays = |element: &Element| now.iter().any(|it| it.owner == element.owner);
            (self.passed, self.known) = self.passed.into_iter().partition(stays);
            self.step(&now, || true)?;
            heirs = now;
        }
        let passed = self.passed.iter().filter_map(host_port);
        self.removed.passed_on = passed.collect();
        Ok(self.removed)
    }

    /// One transaction: what is known goes, and what is free then passes on.
    fn step(&mut self, heirs: &[Heir], are_meant: impl Fn() -> bool) -> Result<(), nft::Error> {
        let table = table_of(heirs);
        let (mut doomed, mut passed) = (Vec::new(), Vec::new());
        self.connection.update(&table, || {
            (doomed, passed) = (Vec::new(), Vec::new());
            if are_meant() {
                doomed = self.still_there(&table)?;
                passed = self.inheritance(&table, (&doomed, heirs))?;
            }
            Ok::<_, nft::Error>(Change {
                delete: doomed.clone(),
                add: passed.clone(),
                ..Change::default()
            })
        })?;
        let base = table::table();
        self.connection.delete_chains_of(&base, &doomed)?;
        self.removed.elements.append(&mut doomed);
        self.passed.append(&mut passed);
        Ok(())
    }

    fn still_there(&self, table: &Table) -> Result<Vec<Element>, nft::Error> {
        let (mut seen, mut there) = (HashSet::new(), Vec::new());
        for element in &self.known {
            let holder = self.connection.holder(table, element)?;
            let is_own = |it: &Element| it.owner == element.owner;
            there.extend(
                holder
                    .filter(is_own)
                    .filter(|_| seen.insert(element.place())),
            );
        }
        Ok(there)
    }

    /// What heirs get of `doomed`, and of what went before and is free.
    fn inheritance(
        &self,
        table: &Table,
        (doomed, heirs): (&[Element], &[Heir]),
    ) -> Result<Vec<Element>, nft::Error> {
        let mut inheritance = Vec::new();
        let gone: HashSet<_> = doomed.iter().map(Element::place).collect();
        let mut seen = HashSet::new();
        for former in self.removed.elements.iter().chain(doomed) {
            let Some(port) = host_port(former).filter(|it| seen.insert(*it)) else {
                continue;
            };
            let is_free =
                gone.contains(&former.place()) || self.connection.holder(table, former)?.is_none();
            if is_free {
                let mut wishes = heirs.iter().map(|it| it.wishes(former, port));
                inheritance.extend(wishes.find(|it| !it.is_empty()).unwrap_or_default());
            }
        }
        Ok(inheritance)
    }
}

impl Heir {
    /// What it has to have for `port`, if it wants the port and is of the container of `former`.
    fn wishes(&self, former: &Element, port: HostPort) -> Vec<Element> {
        if !is_heir(&self.owner, &former.owner) {
            return Vec::new();
        }
        let mut seen = HashSet::new();
        let elements = self.record.elements.iter();
        let of_port = elements.filter(|it| concerned_port(it) == Some(port));
        let first = of_port.filter(|it| seen.insert(it.place()));
        first.cloned().collect()
    }
}

fn is_heir(owner: &str, former: &str) -> bool {
    owner != former && Attachment::is_same_container(owner, former)
}

/// Those of the owners `standing` by that do it for owners of `elements`.
fn heirs(records: &Records, elements: &[Element], mut standing: Vec<String>) -> Vec<Heir> {
    if !standing.is_empty() {
        let owners: HashSet<_> = elements.iter().map(|it| it.owner.as_str()).collect();
        standing.retain(|heir| owners.iter().any(|former| is_heir(heir, former)));
    }
    let heirs = standing.into_iter().filter_map(|owner| {
        let record = records.read(&owner)?;
        Some(Heir { owner, record })
    });
    heirs.collect()
}

/// The table with the chains that elements of `heirs` lead to.
fn table_of(heirs: &[Heir]) -> Table {
    let chains = heirs.iter().flat_map(|Heir { record, .. }| {
        [
            (IpVersion::V4, &record.conditions_v4),
            (IpVersion::V6, &record.conditions_v6),
        ]
    });
    table::with_chains(chains.filter_map(|(version, it)| table::condition_chain(version, it)))
}
