//! Removes elements, and passes on what they did to other attachments that want it, the successors:
//!
//! - A port goes to another attachment of the same container that is on the standby list.
//! - Two attachments have one address for a while, for example if a runtime recreates a container
//!   before it deletes the old one. The newer attachment takes over the elements that masquerade
//!   clients of this address, and its record names the displaced attachment. If the newer one ends
//!   first, the displaced one gets the elements back.
//!
//! One transaction removes an element and adds the element of the successor. Attachments may become
//! successors or end at the same time, so this module looks for successors before and after the
//! transaction:
//!
//! - An attachment that joins the list after the second reading finds that the port is free, and
//!   takes it itself.
//! - DEL retires the record of its attachment, and removes it from the list, before it looks for
//!   the attachment's elements. If this module adds an element for this attachment afterwards,
//!   either DEL finds the element, or the second look shows that the attachment is no successor any
//!   more, and this module removes the element.

use std::collections::{BTreeSet, HashSet};

use cni::Attachment;
use nft::{Change, Connection, Element, HostPort, IpVersion, Table};

use crate::element::{concerned_port, host_port};
use crate::record::Record;
use crate::{standby, table};

/// What [`remove`] or [`remove_while`] has removed and passed on.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// The removed elements.
    pub elements: Vec<Element>,
    /// Those of the removed ports that another attachment now forwards.
    pub passed_on: BTreeSet<HostPort>,
}

/// An attachment that may get a port for which it stands by, or an element that was taken from it.
#[derive(Debug, PartialEq)]
struct Successor {
    owner: String,
    record: Record,
}

/// Removes those of the elements `known` that still have the same owner in `nf_tables`. Passes
/// their ports on to attachments of the same container in `standing_by`, the standby list. Gives
/// elements that masquerade back to the first attachment in `displaced` that lists them.
pub(crate) fn remove(
    connection: &Connection,
    known: Vec<Element>,
    standing_by: BTreeSet<String>,
    displaced: &[String],
) -> Result<Removed, nft::Error> {
    let successors = successors(&known, standing_by, displaced);
    let mut removal = Removal::new(connection, known, displaced);
    if successors.is_empty() {
        let deleted = connection.delete_known(&table::without_chains(), &removal.known)?;
        removal.removed.elements = deleted;
    } else {
        removal.step(&successors, || true)?;
    }
    removal.finish(successors)
}

/// Removes all elements of `owner` and passes their ports on like [`remove`], if `are_meant`
/// returns true; otherwise removes nothing. `are_meant` checks that no concurrent ADD has attached
/// `owner` again. If another process changes rules at the same time, the function tries again and
/// calls `are_meant` again.
///
/// # Errors
/// As [`remove`].
pub(crate) fn remove_while(
    connection: &Connection,
    owner: &str,
    displaced: &[String],
    are_meant: impl Fn() -> bool,
) -> Result<Removed, nft::Error> {
    let known = connection.elements_owned(&table::without_chains(), |it| it == owner)?;
    let successors = successors(&known, standby::owners(), displaced);
    let mut removal = Removal::new(connection, known, displaced);
    removal.step(&successors, are_meant)?;
    removal.finish(successors)
}

struct Removal<'a> {
    connection: &'a Connection,
    known: Vec<Element>,
    /// The attachments that may get elements back, those with precedence first.
    displaced: &'a [String],
    /// Elements that were added for successors.
    passed: Vec<Element>,
    removed: Removed,
}

impl<'a> Removal<'a> {
    fn new(connection: &'a Connection, known: Vec<Element>, displaced: &'a [String]) -> Self {
        Self {
            connection,
            known,
            displaced,
            passed: Vec::new(),
            removed: Removed::default(),
        }
    }

    /// Looks for successors again, and runs another transaction if they have changed. The
    /// transaction also removes elements that were added for an attachment that is no successor any
    /// more. Repeats this until the successors have not changed. Then returns the removed elements
    /// and the ports that were passed on.
    fn finish(mut self, mut successors: Vec<Successor>) -> Result<Removed, nft::Error> {
        while !self.removed.elements.is_empty() {
            let standing_by = standby::owners();
            let now = self::successors(&self.removed.elements, standing_by, self.displaced);
            if now
                .iter()
                .map(|it| &it.owner)
                .eq(successors.iter().map(|it| &it.owner))
            {
                break;
            }
            let stays = |element: &Element| now.iter().any(|it| it.owner == element.owner);
            (self.passed, self.known) = self.passed.into_iter().partition(stays);
            self.step(&now, || true)?;
            successors = now;
        }
        let passed = self.passed.iter().filter_map(host_port);
        self.removed.passed_on = passed.collect();
        Ok(self.removed)
    }

    /// Runs one transaction, which removes the elements `self.known`. It passes all elements
    /// removed so far on to `successors`, the attachments that may get them, unless another
    /// attachment has the key now. If `are_meant` returns false, the transaction removes and adds
    /// no element.
    fn step(
        &mut self,
        successors: &[Successor],
        are_meant: impl Fn() -> bool,
    ) -> Result<(), nft::Error> {
        let table = table_of(successors);
        let (mut stale, mut passed) = (Vec::new(), Vec::new());
        self.connection.update(&table, || {
            (stale, passed) = (Vec::new(), Vec::new());
            if are_meant() {
                stale = self.connection.still_held(&table, &self.known)?;
                passed = self.for_successors(&table, (&stale, successors))?;
            }
            Ok::<_, nft::Error>(Change::of(stale.clone(), passed.clone()))
        })?;
        let base = table::without_chains();
        self.connection.delete_chains_of(&base, &stale)?;
        self.removed.elements.append(&mut stale);
        self.passed.append(&mut passed);
        Ok(())
    }

    /// Returns the elements to add for `successors`, the attachments that may get removed elements.
    /// The key of an element is free if the current transaction removes the element (`stale`), or
    /// if an earlier transaction removed it and no attachment has the key now. The first successor
    /// that wants a free key gets it. Conditions go with the element that forwards their port.
    fn for_successors(
        &self,
        table: &Table,
        (stale, successors): (&[Element], &[Successor]),
    ) -> Result<Vec<Element>, nft::Error> {
        let mut added = Vec::new();
        let gone: HashSet<_> = stale.iter().map(Element::place).collect();
        let mut seen = HashSet::new();
        for former in self.removed.elements.iter().chain(stale) {
            if !seen.insert(former.place()) || is_condition(former) {
                continue;
            }
            let is_free =
                gone.contains(&former.place()) || self.connection.holder(table, former)?.is_none();
            if is_free {
                let mut wanted = successors.iter().map(|it| it.wanted(former));
                added.extend(wanted.find(|it| !it.is_empty()).unwrap_or_default());
            }
        }
        Ok(added)
    }
}

impl Successor {
    /// Returns the elements that this attachment wants in place of `former`, a removed element:
    ///
    /// - `former` forwarded a port: the elements of this port, if `former` was of the same
    ///   container.
    /// - `former` masqueraded: the element with the same key, of any container.
    ///
    /// Returns none if this attachment wants none, or if `former` was its own.
    fn wanted(&self, former: &Element) -> Vec<Element> {
        let port = host_port(former);
        let is_excluded = match port {
            Some(_) => !is_successor(&self.owner, &former.owner),
            None => self.owner == former.owner,
        };
        if is_excluded {
            return Vec::new();
        }
        let is_wanted = |it: &&Element| match port {
            Some(_) => concerned_port(it) == port,
            None => it.place() == former.place(),
        };
        let mut seen = HashSet::new();
        let elements = self.record.elements.iter().filter(is_wanted);
        let first = elements.filter(|it| seen.insert(it.place()));
        first.cloned().collect()
    }
}

/// Returns whether `element` points to the chain with the conditions of a port.
fn is_condition(element: &Element) -> bool {
    host_port(element).is_none() && concerned_port(element).is_some()
}

fn is_successor(owner: &str, former: &str) -> bool {
    owner != former && Attachment::is_same_container(owner, former)
}

/// Returns the attachments that may get `elements`: those in `displaced`, and those of the standby
/// list `standing_by` that belong to the same container as the owner of an element. Omits
/// attachments without a record, or whose record DEL or GC has retired (renamed).
fn successors(
    elements: &[Element],
    mut standing_by: BTreeSet<String>,
    displaced: &[String],
) -> Vec<Successor> {
    if !standing_by.is_empty() {
        let owners: HashSet<_> = elements.iter().map(|it| it.owner.as_str()).collect();
        standing_by.retain(|successor| owners.iter().any(|former| is_successor(successor, former)));
    }
    let owners = displaced.iter().cloned().chain(standing_by);
    let successors = owners.filter_map(|owner| {
        let record = Record::current(&owner)?;
        Some(Successor { owner, record })
    });
    successors.collect()
}

/// Returns portmap's table with the chains of conditions that elements of `successors` point to.
fn table_of(successors: &[Successor]) -> Table {
    let chains = successors.iter().flat_map(|Successor { record, .. }| {
        let chain = |version| table::condition_chain(version, &record.conditions);
        IpVersion::ALL.into_iter().filter_map(chain)
    });
    table::with_chains(chains)
}
