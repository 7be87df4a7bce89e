//! The maps from the addresses of containers to chains of `nf_tables`, and the attachments that
//! stand by for an address.
//!
//! Two attachments may have the same address for a while, for example if a runtime recreates a
//! container before it deletes the old one. A map has only one element for an address. The owner of
//! this element, the attachment that ADD made last, *holds* the address. The other attachment
//! *stands by*: it has an element in the map `standby`, which no rule uses. [`remove`] removes the
//! holder's element, and gives the address to the attachment that stands by.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink::{Link, LinkKind};
use nft::{Change, Connection, Element, Set, Table, TargetType, Type, Value, supported};

use crate::{Protection, is_host_end_of};

/// Which attachment gets the element that rules use, if a caller adds an address that another
/// attachment with a veth pair already holds. The other one stands by and gets the address later
/// ([`remove`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precedence {
    /// The caller takes the address, and the other attachment stands by. ADD does this.
    Take,
    /// The other attachment keeps the address, and the caller stands by for it. RELOAD does this,
    /// so repeated RELOADs of both attachments do not take the address from each other.
    StandBy,
}

/// Returns the three maps of this module, without elements: from containers' IPv4 addresses to
/// chains, from their IPv6 addresses to chains, and `standby`. The key of `standby` is the address,
/// in the form of IPv6, and the name of the host's end of the veth pair.
pub(crate) fn maps() -> [Set; 3] {
    let map = |name, key: &[Type]| Set::new(name, key, TargetType::Chain);
    [
        map(PODS_V4, &[Type::Ipv4Address]),
        map(PODS_V6, &[Type::Ipv6Address]),
        map(STANDBY, &[Type::Ipv6Address, Type::InterfaceName]),
    ]
}

/// Returns the map element that makes packets from `address` continue in `chain`. With this
/// element, the attachment with the tag `owner` holds the address.
pub(crate) fn element(address: IpAddr, chain: &str, owner: &str) -> Element {
    let map = if address.is_ipv4() { PODS_V4 } else { PODS_V6 };
    Element::new(map, &[Value::Address(address)], owner).to_chain(chain)
}

/// Returns the element of the map `standby` for the owner of `element`. With it, the owner stands
/// by for its address while another attachment holds the address. `port` is the name of the host's
/// end of the owner's veth pair. Returns `None` if `element` belongs to neither `pods4` nor
/// `pods6`.
pub(crate) fn standby(element: &Element, port: &str) -> Option<Element> {
    let address = match address(element)? {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let key = [Value::Address(address.into()), Value::InterfaceName(port)];
    let standby = Element::new(STANDBY, &key, &element.owner);
    Some(standby.to_chain(element.chain()?))
}

/// Returns the change that adds the elements of `protection`. `port` is the name of the host's end
/// of the attachment's veth pair.
///
/// An element replaces an existing one with the same key, with one exception. If the key is a
/// container's address, and the existing element belongs to another attachment that has a veth link
/// on the host, `precedence` decides which attachment gets the address.
pub(crate) fn change(
    connection: &Connection,
    protection: &Protection,
    port: &str,
    precedence: Precedence,
) -> anyhow::Result<Change> {
    let Protection { table, elements } = protection;
    let mut change = Change::default();
    let mut links = Links::default();
    for (wanted, holder) in elements.iter().zip(connection.holders(table, elements)?) {
        let rival = holder.as_ref().filter(|it| it.owner != wanted.owner);
        let rival_port = rival.map(|it| links.port(&it.owner)).transpose()?.flatten();
        let standby = match (rival.zip(rival_port), precedence) {
            (None, _) => None,
            (Some((rival, port)), Precedence::Take) => standby(rival, &port),
            (Some(_), Precedence::StandBy) => standby(wanted, port),
        };
        if let Some(standby) = &standby {
            change.delete.extend(connection.holder(table, standby)?);
        }
        if standby.is_none() || precedence == Precedence::Take {
            change.delete.extend(holder);
            change.add.push(wanted.clone());
        }
        change.add.extend(standby);
    }
    Ok(change)
}

/// Removes the elements of `table` whose tag `is_stale` accepts, and returns them. In the same
/// transaction, gives their addresses to attachments that stand by for them (see the
/// [module](self)). Also gives away addresses that no element holds although an attachment stands
/// by, for example because another program deleted the element. Removes nothing if the kernel does
/// not support the table.
pub(crate) fn remove(
    connection: &Connection,
    table: &Table,
    is_stale: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<Element>> {
    let mut removed = Vec::new();
    let mut gone = BTreeSet::new();
    loop {
        let Some(listed) = supported(connection.elements_owned(table, |_| true))? else {
            return Ok(removed);
        };
        let is_stale = |it: &Element| is_stale(&it.owner) || gone.contains(&it.owner);
        let (stale, others): (Vec<_>, Vec<_>) = listed.into_iter().partition(is_stale);
        let successors = successors(&others);
        let (freed, rest): (Vec<_>, Vec<_>) = stale.into_iter().partition(|held| {
            let address = address(held);
            let mut awaited = successors.iter().map(|it| stands_by_for(it));
            address.is_some() && awaited.any(|it| it == address)
        });
        let handover = pass_on(connection, table, &freed, &successors)?;
        removed.extend(handover.removed);
        removed.extend(connection.delete_known(table, &rest)?);
        // A DEL may have deleted the link of a successor, and may have looked for its elements
        // before the successor got the address.
        let mut links = Links::default();
        gone.clear();
        for successor in handover.successors {
            if !links.has_end(&successor)? {
                gone.insert(successor.owner);
            }
        }
        if gone.is_empty() {
            return Ok(removed);
        }
    }
}

/// Returns those standby elements in `elements` (a whole table) whose address no attachment holds.
fn successors(elements: &[Element]) -> Vec<&Element> {
    let standby = elements.iter().filter(|it| it.set == STANDBY);
    let standby: Vec<_> = standby.collect();
    if standby.is_empty() {
        return standby;
    }
    let held: BTreeSet<_> = elements.iter().filter_map(address).collect();
    let is_free = |it: &&Element| stands_by_for(it).is_some_and(|address| !held.contains(&address));
    standby.into_iter().filter(is_free).collect()
}

/// What [`pass_on`] changed.
#[derive(Default)]
struct Handover {
    /// The deleted elements of the former holders.
    removed: Vec<Element>,
    /// The former elements in the map `standby` of the attachments that hold the addresses now.
    successors: Vec<Element>,
}

/// Deletes `freed`, the elements of addresses, and gives each address to the first attachment that
/// stands by for it with an element in `successors` and has a veth link. Deletes the elements in
/// `successors` of attachments without a link.
fn pass_on(
    connection: &Connection,
    table: &Table,
    freed: &[Element],
    successors: &[&Element],
) -> anyhow::Result<Handover> {
    let mut outcome = Handover::default();
    if successors.is_empty() {
        return Ok(outcome);
    }
    let mut dead = Vec::new();
    connection.update(table, || {
        let mut links = Links::default();
        outcome.removed = connection.still_held(table, freed)?;
        outcome.successors.clear();
        dead.clear();
        let mut add: Vec<Element> = Vec::new();
        for successor in connection.still_held(table, successors.iter().copied())? {
            let held = stands_by_for(&successor).zip(successor.chain());
            let Some(held) = held.map(|(address, chain)| element(address, chain, &successor.owner))
            else {
                continue;
            };
            if !links.has_end(&successor)? {
                dead.push(successor);
                continue;
            }
            let holder = connection.holder(table, &held)?;
            let is_free = holder.is_none_or(|it| outcome.removed.contains(&it));
            if is_free && add.iter().all(|it| it.place() != held.place()) {
                add.push(held);
                outcome.successors.push(successor);
            }
        }
        let delete = [&outcome.removed, &outcome.successors, &dead]
            .into_iter()
            .flatten();
        Ok::<_, anyhow::Error>(Change::of(delete.cloned().collect(), add))
    })?;
    for deleted in [&outcome.removed, &dead] {
        connection.delete_chains_of(table, deleted)?;
    }
    Ok(outcome)
}

/// Returns `wanted`, elements of an attachment whose veth pair has the host's end `port`, as they
/// are if the attachment stands by: with its element of the map `standby` in place of the element
/// of an address that another attachment holds.
pub(crate) fn present(
    connection: &Connection,
    table: &Table,
    wanted: &[Element],
    port: &str,
) -> Result<Vec<Element>, nft::Error> {
    let holders = connection.holders(table, wanted)?;
    let present = wanted.iter().zip(holders).map(|(wanted, holder)| {
        let rival = holder.filter(|it| it.owner != wanted.owner);
        let Some(standby) = rival.and_then(|_| standby(wanted, port)) else {
            return Ok(wanted.clone());
        };
        let stands_by = connection.holder(table, &standby)?.as_ref() == Some(&standby);
        Ok(if stands_by { standby } else { wanted.clone() })
    });
    present.collect()
}

/// Returns the address that an attachment holds with `element`. Returns `None` if `element` belongs
/// to neither `pods4` nor `pods6`.
fn address(element: &Element) -> Option<IpAddr> {
    key_address(element).filter(|_| element.set != STANDBY)
}

/// Returns the address for which an attachment stands by with `element`. Returns `None` if
/// `element` does not belong to the map `standby`.
fn stands_by_for(element: &Element) -> Option<IpAddr> {
    let is_standby = element.set == STANDBY;
    Some(key_address(element).filter(|_| is_standby)?.to_canonical())
}

/// Returns the address in the key of `element`. Returns `None` if `element` belongs to none of the
/// [`maps`].
fn key_address(element: &Element) -> Option<IpAddr> {
    match key(element).first()? {
        Value::Address(address) => Some(*address),
        _ => None,
    }
}

/// Returns the parts of the key of `element`; empty if `element` belongs to none of the [`maps`].
fn key(element: &Element) -> Vec<Value<'_>> {
    let maps = maps();
    let map = maps.iter().find(|it| it.name == element.set);
    map.map(|it| element.key(it)).unwrap_or_default()
}

/// The host's links, read from the kernel when they are first needed.
#[derive(Default)]
struct Links(Option<Vec<Link>>);

impl Links {
    /// Returns the name of the host's end of the veth pair of the attachment with the tag `owner`;
    /// `None` if there is no such link.
    fn port(&mut self, owner: &str) -> Result<Option<String>, netlink::Error> {
        let end = self.veth(|it| is_host_end_of(it, owner))?;
        Ok(end.map(|it| it.name.clone()))
    }

    /// Returns whether the veth pair of an attachment exists that has the element `standby` in the
    /// map `standby`. A pair that the Go plugins made has no tag, but the name in the key.
    fn has_end(&mut self, standby: &Element) -> Result<bool, netlink::Error> {
        let is_named = |name: &str| key(standby).contains(&Value::InterfaceName(name));
        let is_untagged = |it: &Link| it.alias.is_none() && is_named(&it.name);
        let end = self.veth(|it| is_host_end_of(it, &standby.owner) || is_untagged(it))?;
        Ok(end.is_some())
    }

    /// Returns a veth link that satisfies `is_meant`.
    fn veth(&mut self, is_meant: impl Fn(&Link) -> bool) -> Result<Option<&Link>, netlink::Error> {
        let links = match &mut self.0 {
            Some(links) => links,
            none => none.insert(netlink::Connection::open()?.links()?),
        };
        let mut veths = links.iter().filter(|it| it.kind == LinkKind::Veth);
        Ok(veths.find(|it| is_meant(it)))
    }
}

/// Names of the maps from containers' addresses to chains: first of IPv4 addresses, then of IPv6
/// addresses.
pub(crate) const PODS_V4: &str = "pods4";
pub(crate) const PODS_V6: &str = "pods6";

pub(crate) const STANDBY: &str = "standby";
