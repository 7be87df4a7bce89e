//! Decides which elements an ADD adds and deletes. The decision depends on the claim (the elements
//! that the attachment wants) and on the elements that `nf_tables` has.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use nft::{Change, Connection, Counts, Element, HostPort};

use crate::element::{concerned_port, count_element, host_port, port_element};
use crate::names::address_set;
use crate::table::Claim;

/// Why a claim cannot be installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Another attachment has the requested `port`. `holder` is the element of that attachment.
    #[error("{port} is held")]
    Held { port: HostPort, holder: Element },
    /// `nf_tables` has an element of the attachment that its record does not list. The caller
    /// completes the record and tries again.
    #[error("the record is not complete")]
    Unlisted,
    #[error(transparent)]
    Nft(#[from] nft::Error),
}

/// Present elements in `nf_tables` that a claim may conflict with.
struct Found<'a> {
    /// Each element of the claim, with the present element that has the same key.
    places: Vec<(&'a Element, Option<Element>)>,
    /// Elements that show a conflict, by the claimed port. For a port of a single address: the
    /// element of the same port of all addresses. For a port of all addresses: the element that
    /// counts the single addresses with this port.
    others: HashMap<HostPort, Element>,
}

/// Ports that exist for single addresses and that the claim requests for all addresses.
#[derive(Default)]
struct Singles {
    /// The elements of the single addresses' ports, by the claimed port of all addresses.
    elements: HashMap<HostPort, Vec<Element>>,
    /// Whether the counts of these ports have to be corrected.
    counts: Counts,
}

/// Returns the change that installs `claim`. The change adds the claim's elements, except for ports
/// that another attachment of the same container already serves. It deletes existing elements with
/// the same keys, and the attachment's elements that the claim does not have. It never deletes a
/// port of another attachment.
///
/// `had` contains the elements that the attachment's record lists. `behind` contains the owners of
/// attachments of the same container that already serve ports; for these ports, the attachment only
/// stands by.
pub(crate) fn decide(
    connection: &Connection,
    claim: &Claim,
    had: &[Element],
    behind: &BTreeSet<String>,
) -> Result<Change, Refusal> {
    let found = find(connection, claim)?;
    let singles = singles(connection, claim, &found)?;
    let standing = ports_behind(claim, &found, &singles, behind)?;
    // A record may list two elements with the same key, because an ADD may have been killed while
    // it replaced one by the other. `nf_tables` has at most one of them, so the map keeps one.
    let mut known: BTreeMap<_, _> = had.iter().map(|it| (it.place(), it)).collect();
    let stands_by = |it: &Element| concerned_port(it).is_some_and(|it| standing.contains(&it));
    let mut change = Change {
        counts: singles.counts,
        ..Change::default()
    };
    for (element, there) in found.places {
        if stands_by(element) {
            continue;
        }
        let is_own = there.as_ref().is_some_and(|it| it.owner == claim.owner);
        if is_own && !known.contains_key(&element.place()) {
            return Err(Refusal::Unlisted);
        }
        change.delete.extend(there);
        change.add.push(element.clone());
    }
    let claimed: HashSet<_> = claim.elements.iter().map(Element::place).collect();
    known.retain(|place, _| !claimed.contains(place));
    let others = connection.still_held(&claim.table, known.values().copied())?;
    change.delete.extend(others);
    Ok(change)
}

/// Looks up all present elements of [`Found`] with one request to the kernel.
fn find<'a>(connection: &Connection, claim: &'a Claim) -> Result<Found<'a>, nft::Error> {
    let ports: Vec<_> = claim.elements.iter().filter_map(host_port).collect();
    let others = ports.iter().map(|port| match port.address {
        Some(_) => port_element(port.of_every_address(), &claim.owner),
        None => count_element(*port),
    });
    let others: Vec<_> = others.collect();
    let wanted = claim.elements.iter().chain(&others);
    let mut held = connection.holders(&claim.table, wanted)?.into_iter();
    let places = claim.elements.iter().zip(held.by_ref()).collect();
    let others = ports.into_iter().zip(held);
    let others = others.filter_map(|(port, it)| Some((port, it?))).collect();
    Ok(Found { places, others })
}

/// Returns the claimed ports that attachments in `behind` serve, which are attachments of the same
/// container.
///
/// # Errors
/// [`Refusal::Held`]: another attachment holds a port, on an address that the claim includes.
fn ports_behind(
    claim: &Claim,
    found: &Found<'_>,
    singles: &Singles,
    behind: &BTreeSet<String>,
) -> Result<HashSet<HostPort>, Refusal> {
    let mut standing = HashSet::new();
    let is_other = |it: &&Element| it.owner != claim.owner;
    for (element, there) in &found.places {
        let Some(port) = host_port(element) else {
            continue;
        };
        let same = there.as_ref().filter(is_other);
        let wider = found.others.get(&port).filter(|_| port.address.is_some());
        let narrower = singles.elements.get(&port).into_iter().flatten();
        let wide = same.into_iter().chain(wider);
        let mut holders = wide.chain(narrower).filter(is_other);
        if let Some(holder) = holders.find(|it| !behind.contains(&it.owner)) {
            let holder = holder.clone();
            return Err(Refusal::Held { port, holder });
        }
        if same.is_some() {
            standing.insert(port);
        }
    }
    Ok(standing)
}

/// Returns the ports of single addresses that conflict with the claim's ports of all addresses. The
/// kernel looks up only whole keys, which include the address. So the function lists all ports of
/// single addresses, but only if a count shows that such a port exists. A count for which no port
/// is found is too high and has to be corrected.
fn singles(
    connection: &Connection,
    claim: &Claim,
    found: &Found<'_>,
) -> Result<Singles, nft::Error> {
    let counted = found.others.keys().filter(|port| port.address.is_none());
    let counted: HashSet<_> = counted.copied().collect();
    let mut singles = Singles::default();
    let versions: BTreeSet<_> = counted.iter().map(|port| port.version).collect();
    for version in versions {
        let set = address_set(version);
        for element in connection.elements_of(&claim.table, &set)? {
            let port = host_port(&element).map(HostPort::of_every_address);
            if let Some(port) = port.filter(|it| counted.contains(it)) {
                singles.elements.entry(port).or_default().push(element);
            }
        }
    }
    if singles.elements.len() < counted.len() {
        singles.counts = Counts::Listed;
    }
    Ok(singles)
}
