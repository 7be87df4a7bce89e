//! Gateway addresses on the host, and the forwarding that they need.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::{Error, Undo, note};
use ipnetwork::IpNetwork;
use netlink::{
    Address, Connection, Dad, IpVersion, Link, LinkKind, Request, Route, created, found,
};
use netns::Sysctl;

use crate::{HOST_LINK_PREFIX, OtherAddress};

/// The gateways of one attachment to a bridge.
#[derive(Clone, Copy)]
pub(crate) struct Gateways<'a> {
    /// Connection to the host's namespace.
    pub host: &'a Connection,
    /// The bridge that the host's end of the veth pair is a port of.
    pub bridge: &'a Link,
    /// The link that has the gateway addresses: the bridge, or its VLAN link.
    pub link: &'a Link,
    /// Name of the host's end of the veth pair.
    pub port: &'a str,
    /// Gateway addresses, with the prefix lengths of their networks.
    pub addresses: &'a [IpNetwork],
    /// What to do with an address of `link` that conflicts with a gateway address.
    pub other: OtherAddress,
}

impl Gateways<'_> {
    /// Adds the gateway addresses that the link lacks, and enables forwarding. If `other` is
    /// [`OtherAddress::Replace`], first deletes addresses that conflict with the missing ones.
    /// Registers the rollback in `undo`. Returns the addresses that it added.
    ///
    /// The caller must make the host's end a port of the bridge first. Then the rollback of a
    /// concurrent ADD sees this port and does not remove the addresses.
    ///
    /// # Errors
    /// - Code 7: another address of the link conflicts with a gateway address, and `other` is
    ///   [`OtherAddress::Refuse`].
    /// - Code 100: the kernel refuses a request.
    pub fn ensure(&self, undo: &mut Undo<'_>) -> anyhow::Result<Vec<IpAddr>> {
        let mut added = Vec::new();
        if self.addresses.is_empty() {
            return Ok(added);
        }
        let mut there = self.host.addresses(self.link.index)?;
        let missing = self.missing(&there);
        let keeps = self.other == OtherAddress::Keep;
        let is_other = |it: &&Address| !keeps && !self.addresses.contains(&it.address);
        let in_the_way = there.iter().filter(is_other).filter_map(|other| {
            let gateway = missing.iter().find(|it| is_in_the_way(other, it))?;
            Some((other.address, **gateway))
        });
        let in_the_way: Vec<(IpNetwork, IpNetwork)> = in_the_way.collect();
        self.expect_replaceable(&in_the_way)?;
        if self.addresses.iter().any(IpNetwork::is_ipv6) {
            enable_ipv6(self.link)?;
        }
        enable_forwarding(self.host, self.addresses)?;
        if !in_the_way.is_empty() {
            self.delete(&in_the_way, &there, undo)?;
            there = self.host.addresses(self.link.index)?;
        }
        for gateway in self.missing(&there) {
            // If a concurrent ADD added the address first, only the rollback of that ADD may remove
            // it.
            if add_address(self.host, self.link.index, *gateway)?.is_some() {
                let (rollback, gateway) = (self.rollback(), *gateway);
                undo.push("remove the gateway address", move || {
                    rollback.remove(gateway)
                });
                added.push(gateway.ip());
            }
        }
        Ok(added)
    }

    fn missing(&self, there: &[Address]) -> Vec<&IpNetwork> {
        let is_missing = |gateway: &&IpNetwork| there.iter().all(|it| it.address != **gateway);
        self.addresses.iter().filter(is_missing).collect()
    }

    fn expect_replaceable(&self, in_the_way: &[(IpNetwork, IpNetwork)]) -> Result<(), Error> {
        let name = &self.link.name;
        match in_the_way {
            [(address, gateway), ..] if self.other == OtherAddress::Refuse => {
                let reason = format!(
                    "{name} has {address}, not {gateway}; remove it, or replace it by forceAddress: true"
                );
                Err(Error::invalid("bridge", reason))
            }
            _ => Ok(()),
        }
    }

    /// Deletes the addresses `in_the_way`, each of which is paired with the gateway that needs its
    /// place.
    ///
    /// With an IPv4 address, the kernel also deletes the secondary addresses of its network, unless
    /// the sysctl `promote_secondaries` is set. A gateway address may be among them, so the caller
    /// reads the addresses again. For the same reason, the rollback restores all missing IPv4
    /// addresses of `there`, the addresses of the link before the deletion.
    fn delete(
        &self,
        in_the_way: &[(IpNetwork, IpNetwork)],
        there: &[Address],
        undo: &mut Undo<'_>,
    ) -> anyhow::Result<()> {
        let (name, rollback) = (&self.link.name, self.rollback());
        let is_deleted = |it: &IpNetwork| in_the_way.iter().any(|(address, _)| address == it);
        let at_risk = there.iter().map(|it| it.address);
        let at_risk: Vec<_> = at_risk
            .filter(|it| it.is_ipv4() || is_deleted(it))
            .collect();
        undo.push("restore the addresses of the bridge", move || {
            rollback.restore(&at_risk)
        });
        for (address, gateway) in in_the_way {
            note!("forceAddress: {name} loses {address} to {gateway}");
            let delete = Request::delete_address(self.link.index, *address);
            // The kernel may have deleted a secondary address already.
            found(self.host.execute([delete]))?;
        }
        Ok(())
    }

    fn rollback(&self) -> AddressRollback {
        AddressRollback {
            bridge: self.bridge.index,
            link: self.link.index,
            port: self.port.to_owned(),
        }
    }
}

/// Rollback of a failed ADD's changes to the addresses of the bridge or its VLAN link. It changes
/// nothing if another container has joined the bridge, because that container may use the gateway.
struct AddressRollback {
    bridge: u32,
    link: u32,
    port: String,
}

impl AddressRollback {
    /// Deletes the gateway address `address`, unless the bridge has another container's port. If a
    /// container joins the bridge during the deletion, the function adds the address again, because
    /// the container may rely on it.
    fn remove(&self, address: IpNetwork) -> anyhow::Result<()> {
        let host = Connection::open()?;
        if self.is_shared(&host)? {
            note!("the bridge keeps {address}: other containers may use it");
            return Ok(());
        }
        found(host.execute([Request::delete_address(self.link, address)]))?;
        if self.is_shared(&host)? {
            add_address(&host, self.link, address)?;
        }
        Ok(())
    }

    /// Adds each of `addresses` that the link lacks, because the failed ADD may have deleted it.
    /// Keeps their order: the first IPv4 address of a network becomes its primary one.
    fn restore(&self, addresses: &[IpNetwork]) -> anyhow::Result<()> {
        let host = Connection::open()?;
        if self.is_shared(&host)? {
            return Ok(());
        }
        for address in addresses {
            add_address(&host, self.link, *address)?;
        }
        Ok(())
    }

    fn is_shared(&self, host: &Connection) -> anyhow::Result<bool> {
        let ports = host.ports(self.bridge)?;
        // Every port with this prefix counts as a container's port. The Go plugins use the same
        // prefix.
        let mut others = ports.iter().filter(|port| port.name != self.port);
        Ok(others.any(|port| port.name.starts_with(HOST_LINK_PREFIX)))
    }
}

/// Adds an address; returns `None` if the link has it already.
fn add_address(
    host: &Connection,
    link: u32,
    address: IpNetwork,
) -> Result<Option<()>, netlink::Error> {
    created(host.execute([Request::add_address(link, address, Dad::Skip)]))
}

/// Returns whether `found`, an address of the link, conflicts with a gateway address. Two IPv4
/// addresses always conflict, because a bridge serves one IPv4 network. Two IPv6 addresses conflict
/// if their networks overlap, unless `found` is link-local.
pub fn is_in_the_way(found: &Address, gateway: &IpNetwork) -> bool {
    match (found.address, gateway) {
        (IpNetwork::V4(_), IpNetwork::V4(_)) => true,
        (IpNetwork::V6(other), IpNetwork::V6(gateway)) => {
            let overlap = other.contains(gateway.ip()) || gateway.contains(other.ip());
            overlap && !found.is_link_local
        }
        _ => false,
    }
}

/// Enables IP forwarding on the host for the families of `gateways`.
pub(crate) fn enable_forwarding(host: &Connection, gateways: &[IpNetwork]) -> anyhow::Result<()> {
    if gateways.iter().any(IpNetwork::is_ipv6) {
        enable_ipv6_forwarding(host)?;
    }
    if gateways.iter().any(IpNetwork::is_ipv4) && !host.forwards(IpVersion::V4)? {
        Sysctl::new(&["net", "ipv4", "ip_forward"]).ensure("1")?;
    }
    Ok(())
}

pub(crate) fn enable_ipv6(link: &Link) -> Result<(), netns::Error> {
    if link.ipv6.is_none_or(|it| it.is_disabled) {
        Sysctl::ipv6(&link.name, "disable_ipv6").ensure("0")?;
    }
    Ok(())
}

/// Enables IPv6 forwarding, unless it is already enabled. The kernel then drops default routes that
/// it learnt from router advertisements and ignores later advertisements, unless `accept_ra` is 2.
/// Addresses that it learnt from them then expire. So the function first changes `accept_ra` from 1
/// to 2 on the links with such a route, and on links other than bridges with an IPv6 address of
/// limited lifetime.
fn enable_ipv6_forwarding(host: &Connection) -> anyhow::Result<()> {
    if host.forwards(IpVersion::V6)? {
        return Ok(());
    }
    let routes = host.default_routes()?;
    let learnt = routes.iter().filter(|it| it.is_from_router_advertisement);
    let addresses = host.every_address()?;
    let expiring = addresses
        .iter()
        .filter(|it| it.expires && it.address.is_ipv6());
    let default_links: BTreeSet<_> = learnt.flat_map(Route::links).collect();
    let expiring: BTreeSet<_> = expiring.map(|it| it.link).collect();
    for index in default_links.union(&expiring) {
        // A missing link is no error: it may have been deleted since the addresses were listed.
        let Some(link) = found(host.link_by_index(*index))? else {
            continue;
        };
        // A container of another program may have advertised the address of a bridge. Forwarding
        // ends that.
        if default_links.contains(index) || link.kind != LinkKind::Bridge {
            keep_accepting_advertisements(&link)?;
        }
    }
    Sysctl::ipv6("all", "forwarding").ensure("1")?;
    Ok(())
}

fn keep_accepting_advertisements(uplink: &Link) -> Result<(), netns::Error> {
    let accept_ra = Sysctl::ipv6(&uplink.name, "accept_ra");
    if accept_ra.read()? == "1" {
        accept_ra.ensure("2")?;
        note!(
            "{} has a route or an address from a router advertisement: accept_ra is 2 now, so that it \
             keeps them while this host forwards",
            uplink.name
        );
    }
    Ok(())
}
