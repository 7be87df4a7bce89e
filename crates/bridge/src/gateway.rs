//! The gateways' addresses on the host, and the forwarding that makes them gateways.

use anyhow::bail;
use cni::{Error, note};
use ipnetwork::IpNetwork;
use netlink::{Connection, Dad, Family, Link, Request, Route};
use netns::Sysctl;

use crate::config::OtherAddress;
use crate::host::Bridge;

/// Gives the bridge the gateways' addresses and lets the host forward for them.
///
/// # Errors
/// Code 7: another address is in the way; whatever the kernel refuses.
pub(crate) fn ensure_gateways(
    host: &Connection,
    bridge: &Bridge,
    gateways: &[IpNetwork],
    other: OtherAddress,
) -> anyhow::Result<()> {
    if gateways.is_empty() {
        return Ok(());
    }
    let link = bridge.gateway_link();
    if gateways.iter().any(IpNetwork::is_ipv6) {
        enable_ipv6(link)?;
        enable_ipv6_forwarding(host)?;
    }
    if gateways.iter().any(IpNetwork::is_ipv4) && !host.forwards(Family::V4)? {
        Sysctl::new(&["net", "ipv4", "ip_forward"]).ensure("1")?;
    }
    let is_missing = |gateway: &IpNetwork| {
        let there = &bridge.addresses;
        there.iter().all(|it| it.address != *gateway)
    };
    let missing: Vec<_> = gateways.iter().copied().filter(is_missing).collect();
    let others = bridge.addresses.iter().map(|it| it.address);
    for address in others.filter(|it| !gateways.contains(it)) {
        if let Some(gateway) = missing.iter().find(|it| is_in_the_way(address, **it)) {
            make_way(host, link, (address, *gateway), other)?;
        }
    }
    for gateway in missing {
        match host.execute(vec![Request::add_address(link.index, gateway, Dad::Skip)]) {
            Err(error) if !error.is_already_exists() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

fn enable_ipv6(link: &Link) -> Result<(), netns::Error> {
    if link.ipv6.is_none_or(|it| it.is_disabled) {
        Sysctl::ipv6(&link.name, "disable_ipv6").ensure("0")?;
    }
    Ok(())
}

fn make_way(
    host: &Connection,
    link: &Link,
    (address, gateway): (IpNetwork, IpNetwork),
    other: OtherAddress,
) -> anyhow::Result<()> {
    let name = &link.name;
    if other == OtherAddress::Refuse {
        let reason = format!(
            "{name} bears {address}, not {gateway}; remove it, or replace it by forceAddress: true"
        );
        bail!(Error::invalid("bridge", reason));
    }
    note(format_args!(
        "forceAddress: {name} loses {address} to {gateway}"
    ));
    match host.execute(vec![Request::delete_address(link.index, address)]) {
        // Another ADD may have been quicker.
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

/// A bridge has one network's IPv4 addresses, and as many of IPv6 as do not overlap.
fn is_in_the_way(found: IpNetwork, gateway: IpNetwork) -> bool {
    match (found, gateway) {
        (IpNetwork::V4(_), IpNetwork::V4(_)) => true,
        (IpNetwork::V6(_), IpNetwork::V6(_)) => {
            found.contains(gateway.ip()) || gateway.contains(found.ip())
        }
        _ => false,
    }
}

/// Turning forwarding on makes the kernel drop default routes that it learnt from router
/// advertisements and ignore later ones, unless `accept_ra` says 2.
fn enable_ipv6_forwarding(host: &Connection) -> anyhow::Result<()> {
    if host.forwards(Family::V6)? {
        return Ok(());
    }
    let routes = host.routes()?;
    let learnt = routes
        .iter()
        .filter(|it| it.is_default() && it.is_from_router_advertisement);
    for index in learnt.flat_map(Route::links) {
        let uplink = host.link_by_index(index)?;
        let accept_ra = Sysctl::ipv6(&uplink.name, "accept_ra");
        if accept_ra.read()? == "1" {
            accept_ra.ensure("2")?;
            note(format_args!(
                "{} learnt its default route from a router advertisement: accept_ra is 2 now, so that it \
                 keeps the route while this host forwards",
                uplink.name
            ));
        }
    }
    Sysctl::ipv6("all", "forwarding").ensure("1")?;
    Ok(())
}
