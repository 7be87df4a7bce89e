//! Removes elements that forward ports, and passes the ports on to other attachments of the same
//! container that want them. Such attachments are on the standby list.
//!
//! One transaction removes a port's element and adds the element of the attachment that gets the
//! port. Attachments may join or leave the standby list at the same time, so this module reads the
//! list before and after the transaction:
//!
//! - An attachment that joins the list after the second reading finds that the port is free, and
//!   takes it itself.
//! - DEL removes its attachment from the list before it looks for the attachment's elements. If
//!   this module adds an element for this attachment afterwards, either DEL finds the element, or
//!   the second reading shows that the attachment has left, and this module removes the element.

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

/// An attachment on standby for a removed port.
#[derive(Debug, PartialEq)]
struct Heir {
    owner: String,
    record: Record,
}

/// Removes those of the elements `known` that still have the same owner in `nf_tables`. Passes
/// their ports on to attachments of the same container in `standing`, the standby list.
///
/// # Errors
/// The kernel refuses a request.
pub(crate) fn remove(
    connection: &Connection,
    known: Vec<Element>,
    standing: BTreeSet<String>,
) -> Result<Removed, nft::Error> {
    let heirs = heirs(&known, standing);
    let mut removal = Removal::new(connection, known);
    if heirs.is_empty() {
        let deleted = connection.delete_known(&table::without_chains(), &removal.known)?;
        removal.removed.elements = deleted;
    } else {
        removal.step(&heirs, || true)?;
    }
    removal.finish(heirs)
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
    are_meant: impl Fn() -> bool,
) -> Result<Removed, nft::Error> {
    let known = connection.elements_owned(&table::without_chains(), |it| it == owner)?;
    let heirs = heirs(&known, standby::owners());
    let mut removal = Removal::new(connection, known);
    removal.step(&heirs, are_meant)?;
    removal.finish(heirs)
}

struct Removal<'a> {
    connection: &'a Connection,
    /// Elements to remove.
    known: Vec<Element>,
    /// Elements that were added for attachments on standby.
    passed: Vec<Element>,
    removed: Removed,
}

impl<'a> Removal<'a> {
    fn new(connection: &'a Connection, known: Vec<Element>) -> Self {
        Self {
            connection,
            known,
            passed: Vec::new(),
            removed: Removed::default(),
        }
    }

    /// Reads the standby list again, and runs another transaction if the heirs (attachments that
    /// may get the ports) have changed. The transaction also removes elements that were added for
    /// an attachment that is no heir any more. Repeats this until the heirs have not changed. Then
    /// returns the removed elements and the ports that were passed on.
    fn finish(mut self, mut heirs: Vec<Heir>) -> Result<Removed, nft::Error> {
        while !self.removed.elements.is_empty() {
            let standing = standby::owners();
            let now = self::heirs(&self.removed.elements, standing);
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

    /// Runs one transaction, which removes the elements `self.known`. It passes the ports of all
    /// elements removed so far on to `heirs`, the attachments that may get them, unless another
    /// attachment has the port now. If `are_meant` returns false, the transaction removes and adds
    /// no element.
    fn step(&mut self, heirs: &[Heir], are_meant: impl Fn() -> bool) -> Result<(), nft::Error> {
        let table = table_of(heirs);
        let (mut stale, mut passed) = (Vec::new(), Vec::new());
        self.connection.update(&table, || {
            (stale, passed) = (Vec::new(), Vec::new());
            if are_meant() {
                stale = self.connection.still_held(&table, &self.known)?;
                passed = self.inheritance(&table, (&stale, heirs))?;
            }
            Ok::<_, nft::Error>(Change::of(stale.clone(), passed.clone()))
        })?;
        let base = table::without_chains();
        self.connection.delete_chains_of(&base, &stale)?;
        self.removed.elements.append(&mut stale);
        self.passed.append(&mut passed);
        Ok(())
    }

    /// Returns the elements to add for `heirs`, the attachments that may get free ports. A port is
    /// free if the current transaction removes its element (`stale`), or if an earlier transaction
    /// removed the element and no attachment has the port now. The first heir that wants a free
    /// port gets it.
    fn inheritance(
        &self,
        table: &Table,
        (stale, heirs): (&[Element], &[Heir]),
    ) -> Result<Vec<Element>, nft::Error> {
        let mut inheritance = Vec::new();
        let gone: HashSet<_> = stale.iter().map(Element::place).collect();
        let mut seen = HashSet::new();
        for former in self.removed.elements.iter().chain(stale) {
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
    /// Returns the elements that this attachment wants for `port`. Until its removal, the element
    /// `former` forwarded this port. Returns none if this attachment does not want the port, or if
    /// `former` was of another container or of this attachment itself.
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

/// Returns the attachments of the standby list `standing` that may get ports of `elements`. Each of
/// them belongs to the same container as the owner of an element, and has a record.
fn heirs(elements: &[Element], mut standing: BTreeSet<String>) -> Vec<Heir> {
    if !standing.is_empty() {
        let owners: HashSet<_> = elements.iter().map(|it| it.owner.as_str()).collect();
        standing.retain(|heir| owners.iter().any(|former| is_heir(heir, former)));
    }
    let heirs = standing.into_iter().filter_map(|owner| {
        let record = Record::read(&owner)?;
        Some(Heir { owner, record })
    });
    heirs.collect()
}

/// Returns portmap's table with the chains of conditions that elements of `heirs` point to.
fn table_of(heirs: &[Heir]) -> Table {
    let chains = heirs.iter().flat_map(|Heir { record, .. }| {
        let chain = |version| table::condition_chain(version, &record.conditions);
        IpVersion::ALL.into_iter().filter_map(chain)
    });
    table::with_chains(chains)
}
