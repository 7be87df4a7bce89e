//! Who has what is claimed, and what of it has to go.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use nft::{Change, Connection, Counts, Element};

use crate::element::{concerned_port, count_element, host_port, of_single_addresses, port_element};
use crate::plan::HostPort;
use crate::table::Claim;

/// Why a claim cannot be installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Another attachment has a port that was asked for, by this element.
    #[error("{port} is held")]
    Held { port: HostPort, holder: Element },
    /// The attachment has something that it was not known to have.
    #[error("the record is not complete")]
    Unlisted,
    #[error(transparent)]
    Nft(#[from] nft::Error),
}

/// What is known of an attachment before the decision.
pub(crate) struct Known<'a> {
    /// What it had.
    pub elements: &'a [Element],
    /// Owners of the same container, behind whom it stands by.
    pub behind: &'a BTreeSet<String>,
}

/// What `nf_tables` has that a claim may conflict with.
struct Found<'a> {
    /// Each element of the claim, and what is there.
    places: Vec<(&'a Element, Option<Element>)>,
    singles: Singles,
}

/// Ports of single addresses that a claim asks for on every address.
#[derive(Default)]
struct Singles {
    /// By the port of every address.
    elements: HashMap<HostPort, Vec<Element>>,
    /// Whether the counts of such ports are right.
    counts: Counts,
}

/// What is to be changed for `claim`: its elements come, but for ports that it stands by for; elements of the same
/// keys go, but no port of another attachment, and what is left of those that the attachment had.
pub(crate) fn decide(
    connection: &Connection,
    claim: &Claim,
    had: &Known<'_>,
) -> Result<Change, Refusal> {
    let found = find(connection, claim)?;
    let standing = ports_behind(connection, claim, (&found, had.behind))?;
    // A record may list two for one place, where an ADD was killed that would have replaced one.
    let mut known: BTreeMap<_, _> = had.elements.iter().map(|it| (it.place(), it)).collect();
    let stands_by = |it: &Element| concerned_port(it).is_some_and(|it| standing.contains(&it));
    let mut change = Change {
        counts: found.singles.counts,
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
    for element in known.into_values() {
        let there = connection.holder(&claim.table, element)?;
        change
            .delete
            .extend(there.filter(|it| it.owner == claim.owner));
    }
    Ok(change)
}

fn find<'a>(connection: &Connection, claim: &'a Claim) -> Result<Found<'a>, nft::Error> {
    let mut places = Vec::new();
    for element in &claim.elements {
        places.push((element, connection.holder(&claim.table, element)?));
    }
    let singles = singles(connection, claim)?;
    Ok(Found { places, singles })
}

/// The claimed ports that one of those `behind` whom the attachment stands by serves.
///
/// # Errors
/// [`Refusal::Held`]: any other attachment has a port, on any address that it is asked for on.
fn ports_behind(
    connection: &Connection,
    claim: &Claim,
    (found, behind): (&Found<'_>, &BTreeSet<String>),
) -> Result<HashSet<HostPort>, Refusal> {
    let mut standing = HashSet::new();
    let is_other = |it: &&Element| it.owner != claim.owner;
    for (element, there) in &found.places {
        let Some(port) = host_port(element) else {
            continue;
        };
        let same = there.as_ref().filter(is_other);
        let every = port.of_every_address();
        let wider = match port.address {
            Some(_) => connection.holder(&claim.table, &port_element(every, &claim.owner))?,
            None => None,
        };
        let narrower = found.singles.elements.get(&port).into_iter().flatten();
        let wide = same.into_iter().chain(&wider);
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

/// Lists all ports of single addresses where a count says that `claim` asks for one of them on every address: the kernel
/// looks up whole keys alone, addresses included. A count without ports is too high.
fn singles(connection: &Connection, claim: &Claim) -> Result<Singles, nft::Error> {
    let mut counted = BTreeSet::new();
    let claimed = claim.elements.iter().filter_map(host_port);
    for port in claimed.filter(|port| port.address.is_none()) {
        let count = connection.holder(&claim.table, &count_element(port))?;
        counted.extend(count.map(|_| port));
    }
    let mut singles = Singles::default();
    let versions: BTreeSet<_> = counted.iter().map(|port| port.version).collect();
    for version in versions {
        let set = of_single_addresses(version);
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
