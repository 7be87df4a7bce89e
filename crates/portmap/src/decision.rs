//! Who has what is claimed, and what of it has to go.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use nft::{Change, Connection, Element};

use crate::element::{concerned_port, host_port, of_single_addresses, port_element};
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

/// What is to be changed for `claim`: its elements come, but for ports that it stands by for; elements of the same
/// keys go, but no port of another attachment, and what is left of those that the attachment had.
pub(crate) fn decide(
    connection: &Connection,
    claim: &Claim,
    had: &Known<'_>,
) -> Result<Change, Refusal> {
    let standing = ports_behind(connection, claim, had.behind)?;
    // A record may list two for one place, where an ADD was killed that would have replaced one.
    let mut known: BTreeMap<_, _> = had.elements.iter().map(|it| (it.place(), it)).collect();
    let stands_by = |it: &&Element| concerned_port(it).is_some_and(|it| standing.contains(&it));
    let mut change = Change::default();
    for element in claim.elements.iter().filter(|it| !stands_by(it)) {
        let there = connection.holder(&claim.table, element)?;
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

/// The claimed ports that one of those `behind` whom the attachment stands by serves.
///
/// # Errors
/// [`Refusal::Held`]: any other attachment has a port, on any address that it is asked for on.
fn ports_behind(
    connection: &Connection,
    claim: &Claim,
    behind: &BTreeSet<String>,
) -> Result<HashSet<HostPort>, Refusal> {
    let singles = singles(connection, claim)?;
    let mut standing = HashSet::new();
    for port in claim.elements.iter().filter_map(host_port) {
        let other = |asked: HostPort| {
            let element = port_element(asked, &claim.owner);
            let there = connection.holder(&claim.table, &element)?;
            Ok::<_, nft::Error>(there.filter(|it| it.owner != claim.owner))
        };
        let same = other(port)?;
        let every = port.of_every_address();
        let wider = if port == every { None } else { other(every)? };
        let narrower = singles.get(&port).cloned();
        let mut holders = [&same, &wider, &narrower].into_iter().flatten();
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

/// Who else has a port of single addresses, by that port of every address. Which addresses they
/// are cannot be looked up, so all are listed where `claim` has a port of every address.
fn singles(
    connection: &Connection,
    claim: &Claim,
) -> Result<HashMap<HostPort, Element>, nft::Error> {
    let claimed = claim.elements.iter().filter_map(host_port);
    let every = claimed.filter(|port| port.address.is_none());
    let versions: BTreeSet<_> = every.map(|port| port.version).collect();
    let mut singles = HashMap::new();
    for version in versions {
        let set = of_single_addresses(version);
        let mut elements = connection.elements_of(&claim.table, &set)?;
        elements.retain(|it| it.owner != claim.owner);
        for element in elements {
            if let Some(port) = host_port(&element) {
                singles.insert(port.of_every_address(), element);
            }
        }
    }
    Ok(singles)
}
