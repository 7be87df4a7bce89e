//! Decides which elements an ADD adds to `nf_tables` and deletes from it. The decision depends on
//! the desired elements of the attachment and on the elements that `nf_tables` has.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use cni::Error;
use nft::{Change, Connection, Counts, Element, HostPort};

use crate::element::{concerned_port, count_element, host_port, port_element};
use crate::names::address_set;
use crate::table::DesiredElements;

/// Why the elements that an attachment wants cannot be installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Another attachment forwards `port`. `holder` is the element with which that attachment
    /// forwards it.
    #[error("{port} is held")]
    Held { port: HostPort, holder: Element },
    /// `nf_tables` has an element of the attachment that the attachment's record (its file in
    /// `/run/cni/portmap`) does not list. The caller adds the element to the record and tries
    /// again.
    #[error("the record is not complete")]
    Unlisted,
    /// The change replaces elements of the attachment `owner` that masquerade clients of an address
    /// which both attachments have. The caller resolves this conflict and tries again.
    #[error("elements of {owner} are replaced")]
    Displaces { owner: String },
    #[error(transparent)]
    Nft(#[from] nft::Error),
}

/// Returns the error of an ADD or RELOAD that wants `port`, which the attachment `owner` forwards.
pub(crate) fn held(port: HostPort, owner: &str) -> Error {
    let holder = match owner {
        "" => {
            "an element of another program in nf_tables table cni-portmap, until nft(8) deletes it"
                .to_owned()
        }
        owner => format!("{owner}, until its DEL or a GC without it"),
    };
    Error::TryAgain(format!("hostPort: {port} is held by {holder}"))
}

/// The elements in `nf_tables` that may conflict with the desired elements of an attachment.
struct Conflicts<'a> {
    desired: &'a DesiredElements,
    /// Each desired element, paired with the element that `nf_tables` has under the same key.
    /// `None` if `nf_tables` has no element with this key.
    places: Vec<(&'a Element, Option<Element>)>,
    /// For each wanted port, the element of `nf_tables`, if any, that may conflict with it:
    ///
    /// - The port is wanted for a single address: the element forwards it for all addresses.
    /// - The port is wanted for all addresses: the element counts the single addresses for which
    ///   the port is already forwarded.
    others: HashMap<HostPort, Element>,
    /// For each port that is wanted for all addresses, the elements that forward it for single
    /// addresses.
    singles: HashMap<HostPort, Vec<Element>>,
    /// How the change computes the new counts of single addresses for each port: from the counts in
    /// the kernel or, if one of these is wrong, from a list of all elements.
    counts: Counts,
}

/// Returns the change of `nf_tables` that installs `desired`, the elements that the attachment
/// wants.
///
/// - The change adds the desired elements. It omits ports that another attachment of the same
///   container already forwards.
/// - The change deletes the elements that `nf_tables` has under the keys of the added elements.
///   Such an element may belong to another attachment if it only masquerades or has conditions. The
///   change never deletes an element that forwards a port for another attachment.
/// - The change deletes elements of this attachment that are not desired.
///
/// `had` contains the elements that the record of an earlier ADD lists. `behind` contains the tags
/// of attachments to which this one leaves its desired elements. If one of these, an attachment of
/// the same container, already forwards a wanted port, this attachment stands by: it gets the port
/// when the other attachment is deleted. If one of these already masquerades clients of a wanted
/// address, the change omits the element that masquerades them.
pub(crate) fn decide(
    connection: &Connection,
    desired: &DesiredElements,
    had: &[Element],
    behind: &BTreeSet<String>,
) -> Result<Change, Refusal> {
    let found = Conflicts::find(connection, desired)?;
    let standing_by = found.ports_behind(behind)?;
    // An ADD may have been killed while it replaced an element by another with the same key. The
    // record then lists both elements. The map keeps one of them, which is enough to look up the
    // key in `nf_tables`.
    let mut known: BTreeMap<_, _> = had.iter().map(|it| (it.place(), it)).collect();
    let is_left = |element: &Element, there: Option<&Element>| match concerned_port(element) {
        Some(port) => standing_by.contains(&port),
        None => there.is_some_and(|it| behind.contains(&it.owner)),
    };
    let mut change = Change {
        counts: found.counts,
        ..Change::default()
    };
    for (element, there) in found.places {
        if is_left(element, there.as_ref()) {
            continue;
        }
        let is_own = there.as_ref().is_some_and(|it| it.owner == desired.owner);
        if is_own && !known.contains_key(&element.place()) {
            return Err(Refusal::Unlisted);
        }
        change.delete.extend(there);
        change.add.push(element.clone());
    }
    let places: HashSet<_> = desired.elements.iter().map(Element::place).collect();
    known.retain(|place, _| !places.contains(place));
    let others = connection.still_held(&desired.table, known.values().copied())?;
    change.delete.extend(others);
    Ok(change)
}

impl<'a> Conflicts<'a> {
    /// Looks up, with one request to the kernel, the elements that may conflict with `desired`.
    /// Lists elements of single addresses only if the kernel counts such elements for a wanted
    /// port.
    fn find(connection: &Connection, desired: &'a DesiredElements) -> Result<Self, nft::Error> {
        let ports: Vec<_> = desired.elements.iter().filter_map(host_port).collect();
        let others = ports.iter().map(|port| match port.address {
            Some(_) => port_element(port.of_every_address(), &desired.owner),
            None => count_element(*port),
        });
        let others: Vec<_> = others.collect();
        let wanted = desired.elements.iter().chain(&others);
        let mut existing = connection.holders(&desired.table, wanted)?.into_iter();
        let places = desired.elements.iter().zip(existing.by_ref()).collect();
        let others = ports.into_iter().zip(existing);
        let mut found = Self {
            desired,
            places,
            others: others.filter_map(|(port, it)| Some((port, it?))).collect(),
            singles: HashMap::new(),
            counts: Counts::Followed,
        };
        found.list_singles(connection)?;
        Ok(found)
    }

    /// Finds the ports that the attachment wants for all addresses, although they are already
    /// forwarded for single addresses.
    ///
    /// The kernel looks up only whole keys, and these include the address. So the function has to
    /// list all elements of single addresses. If the list contains none for a port for which the
    /// kernel counts some, the count is wrong, and the function sets [`Self::counts`] so that the
    /// change counts again.
    fn list_singles(&mut self, connection: &Connection) -> Result<(), nft::Error> {
        let counted = self.others.keys().filter(|port| port.address.is_none());
        let counted: HashSet<_> = counted.collect();
        let versions: BTreeSet<_> = counted.iter().map(|port| port.version).collect();
        for version in versions {
            let set = address_set(version);
            for element in connection.elements_of(&self.desired.table, &set)? {
                let port = host_port(&element).map(HostPort::of_every_address);
                if let Some(port) = port.filter(|it| counted.contains(it)) {
                    self.singles.entry(port).or_default().push(element);
                }
            }
        }
        if self.singles.len() < counted.len() {
            self.counts = Counts::Listed;
        }
        Ok(())
    }

    /// Returns the wanted ports that the change must omit: an attachment in `behind` already
    /// forwards them under the same key. `behind` contains the tags of other attachments of the same
    /// container.
    ///
    /// # Errors
    /// [`Refusal::Held`]: an attachment that is not in `behind` forwards a wanted port, for all
    /// addresses or for an address that it wants.
    fn ports_behind(&self, behind: &BTreeSet<String>) -> Result<HashSet<HostPort>, Refusal> {
        let mut standing_by = HashSet::new();
        let is_other = |it: &&Element| it.owner != self.desired.owner;
        for (element, there) in &self.places {
            let Some(port) = host_port(element) else {
                continue;
            };
            let same = there.as_ref().filter(is_other);
            let wider = self.others.get(&port).filter(|_| port.address.is_some());
            let narrower = self.singles.get(&port).into_iter().flatten();
            let wide = same.into_iter().chain(wider);
            let mut holders = wide.chain(narrower).filter(is_other);
            if let Some(holder) = holders.find(|it| !behind.contains(&it.owner)) {
                let holder = holder.clone();
                return Err(Refusal::Held { port, holder });
            }
            if same.is_some() {
                standing_by.insert(port);
            }
        }
        Ok(standing_by)
    }
}
