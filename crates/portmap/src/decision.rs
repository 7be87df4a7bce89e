//! Who has what is claimed, and what of it has to go.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use nft::{Connection, Element};

use crate::plan::HostPort;
use crate::table::{self, Claim};

/// Why a claim cannot be installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Somebody else has a port that was asked for.
    #[error("{port} is held")]
    Held { port: HostPort, owner: String },
    /// The attachment has something that it was not known to have.
    #[error("the record is not complete")]
    Unlisted,
    #[error(transparent)]
    Nft(#[from] nft::Error),
}

/// What has to go for `claim`: elements of the same keys, but no port of somebody else, and what is
/// left of those that the attachment `had`.
pub(crate) fn decide(
    connection: &Connection,
    claim: &Claim,
    had: &[Element],
) -> Result<Vec<Element>, Refusal> {
    let singles = of_single_addresses(connection, claim)?;
    // A record may list two for one place, where an ADD was killed that would have replaced one.
    let mut known: BTreeMap<_, _> = had.iter().map(|it| (it.place(), it)).collect();
    let mut doomed = Vec::new();
    for element in &claim.elements {
        if let Some(port) = table::host_port(element) {
            expect_free(connection, claim, port, &singles)?;
        }
        let there = connection.holder(&claim.table, element)?;
        let is_own = there.as_ref().is_some_and(|it| it.owner == claim.owner);
        if is_own && !known.contains_key(&element.place()) {
            return Err(Refusal::Unlisted);
        }
        doomed.extend(there);
    }
    let claimed: HashSet<_> = claim.elements.iter().map(Element::place).collect();
    known.retain(|place, _| !claimed.contains(place));
    for element in known.into_values() {
        let there = connection.holder(&claim.table, element)?;
        doomed.extend(there.filter(|it| it.owner == claim.owner));
    }
    Ok(doomed)
}

/// Nobody else has the port, on any address that it is asked for on.
fn expect_free(
    connection: &Connection,
    claim: &Claim,
    port: HostPort,
    singles: &HashMap<HostPort, String>,
) -> Result<(), Refusal> {
    let every = port.of_every_address();
    let mut asked = vec![every];
    asked.extend(Some(port).filter(|port| *port != every));
    for asked in asked {
        let element = table::port_element(asked, &claim.owner);
        let there = connection.holder(&claim.table, &element)?;
        if let Some(Element { owner, .. }) = there.filter(|it| it.owner != claim.owner) {
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

/// Who else has a port of single addresses, by that port of every address. Which addresses they
/// are cannot be looked up, so all are listed where `claim` has a port of every address.
fn of_single_addresses(
    connection: &Connection,
    claim: &Claim,
) -> Result<HashMap<HostPort, String>, nft::Error> {
    let claimed = claim.elements.iter().filter_map(table::host_port);
    let every = claimed.filter(|port| port.address.is_none());
    let versions: BTreeSet<_> = every.map(|port| port.version).collect();
    let mut singles = HashMap::new();
    for version in versions {
        let set = table::of_single_addresses(version);
        let mut elements = connection.elements_of(&claim.table, &set)?;
        elements.retain(|it| it.owner != claim.owner);
        for element in elements {
            if let Some(port) = table::host_port(&element) {
                singles.insert(port.of_every_address(), element.owner);
            }
        }
    }
    Ok(singles)
}
