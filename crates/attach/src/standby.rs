//! The maps from the addresses of containers to chains of `nf_tables`, and the attachments that
//! stand by for an address.
//!
//! Two attachments may have the same address for a while, for example if a runtime recreates a
//! container before it deletes the old one. A map has only one element for an address. The owner of
//! this element, the attachment that ADD made last, *holds* the address. The other attachment
//! *stands by*: it has an element in the map `standby`, which no rule uses. When the holder's
//! element is removed, [`hand_over`] gives the address to the attachment that stands by.

use std::net::IpAddr;

use netlink::{Link, LinkKind};
use nft::{Change, Connection, Element, Set, Table, TargetType, Type, Value};

use crate::protection::Protection;

/// Which attachment gets the element that rules use, if a caller adds an address that another
/// attachment with a veth pair already holds. The other one stands by and gets the address later
/// ([`hand_over`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precedence {
    /// The caller takes the address, and the other attachment stands by. ADD does this.
    Take,
    /// The caller stands by. RELOAD does this, so the order of the RELOADs of both attachments does
    /// not matter.
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
///
/// # Errors
/// The kernel refuses a request.
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
            change.delete.extend(existing(connection, table, standby)?);
        }
        if standby.is_none() || precedence == Precedence::Take {
            change.delete.extend(holder);
            change.add.push(wanted.clone());
        }
        change.add.extend(standby);
    }
    Ok(change)
}

/// Gives the addresses of `removed`, elements that no longer exist, to the attachments that stand
/// by for them (see the [module](self)). `others` are the existing elements of the table. If an
/// attachment that stands by for one of these addresses has no veth link any more, deletes its
/// element of the map `standby`.
///
/// # Errors
/// The kernel refuses a request, or other processes keep changing the rules.
pub(crate) fn hand_over(
    connection: &Connection,
    table: &Table,
    removed: &[Element],
    others: &[Element],
) -> anyhow::Result<()> {
    let free: Vec<_> = removed.iter().filter_map(address).collect();
    let standby = others.iter().filter(|it| it.set == STANDBY);
    let is_heir = |it: &&Element| stands_by_for(it).is_some_and(|it| free.contains(&it));
    let heirs: Vec<_> = standby.filter(is_heir).collect();
    if heirs.is_empty() {
        return Ok(());
    }
    connection.update(table, || {
        let mut change = Change::default();
        let mut links = Links::default();
        for heir in connection.still_held(table, heirs.iter().copied())? {
            let held = stands_by_for(&heir).zip(heir.chain());
            let Some(held) = held.map(|(address, chain)| element(address, chain, &heir.owner))
            else {
                continue;
            };
            let is_live = links.port(&heir.owner)?.is_some();
            let is_taken = connection.holder(table, &held)?.is_some();
            let is_given = change.add.iter().any(|it| it.place() == held.place());
            if is_live && !is_taken && !is_given {
                change.add.push(held);
            } else if is_live {
                continue;
            }
            change.delete.push(heir);
        }
        Ok::<_, anyhow::Error>(change)
    })?;
    Ok(())
}

/// Returns the existing element with the set and key of `wanted`. Returns `None` also if the set
/// does not exist, as in a table that an earlier version made.
fn existing(
    connection: &Connection,
    table: &Table,
    wanted: &Element,
) -> Result<Option<Element>, nft::Error> {
    match connection.holder(table, wanted) {
        Err(error) if error.is_not_found() => Ok(None),
        holder => holder,
    }
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
    let map = maps().into_iter().find(|it| it.name == element.set)?;
    match element.key(&map).first()? {
        Value::Address(address) => Some(*address),
        _ => None,
    }
}

/// The host's links. The first call of [`Links::port`] reads them from the kernel.
#[derive(Default)]
struct Links(Option<Vec<Link>>);

impl Links {
    /// Returns the name of the host's end of the veth pair of the attachment with the tag `owner`;
    /// `None` if there is no such link.
    fn port(&mut self, owner: &str) -> Result<Option<String>, netlink::Error> {
        let links = match &mut self.0 {
            Some(links) => links,
            none => none.insert(netlink::Connection::open()?.links()?),
        };
        let is_of = |it: &&Link| it.kind == LinkKind::Veth && it.alias.as_deref() == Some(owner);
        Ok(links.iter().find(is_of).map(|it| it.name.clone()))
    }
}

/// Names of the maps from containers' addresses to chains: first of IPv4 addresses, then of IPv6
/// addresses.
pub(crate) const PODS_V4: &str = "pods4";
pub(crate) const PODS_V6: &str = "pods6";

const STANDBY: &str = "standby";
