//! Gateways whose addresses are in a connected network of another link.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::bail;
use cni::{Error, note};
use ipnetwork::IpNetwork;
use netlink::{Connection, Link, Neighbour, Route, network_of};

use crate::{Addressing, HostSide};

/// A gateway whose address is in a connected network of another link of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayConflict {
    /// Address of the gateway.
    pub gateway: IpAddr,
    /// The containers' network.
    pub subnet: IpNetwork,
    /// Destination of the host's route to the gateway.
    pub connected: IpNetwork,
    /// Index of the link of this route.
    pub link: u32,
}

/// The reason why ADD refuses the gateway of a [`GatewayConflict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum GatewayRefusal {
    /// The containers' network is not a part of the connected network, but equal or wider, or does
    /// not contain the gateway.
    #[display("the address may be in use there")]
    Network,
    /// A route of the host has the gateway as its next hop.
    #[display("a route has the address as its next hop")]
    NextHop,
    /// The host has a permanent neighbour entry for the gateway's address.
    #[display("a permanent neighbour entry has the address")]
    Neighbour,
}

impl GatewayConflict {
    /// Returns why ADD refuses the gateway. Returns `None` if ADD accepts it: the containers'
    /// network is only a part of the connected network, and the gateway's address is neither a next
    /// hop nor a permanent neighbour on the link. `routes` and `neighbours` are those of the host.
    pub fn refusal(&self, routes: &[Route], neighbours: &[Neighbour]) -> Option<GatewayRefusal> {
        let (address, link) = (self.gateway, self.link);
        let mut permanent = neighbours.iter().filter(|it| it.is_permanent);
        let is_part = self.subnet.prefix() > self.connected.prefix();
        if !is_part || !self.subnet.contains(address) {
            Some(GatewayRefusal::Network)
        } else if routes.iter().any(|it| it.leads_by(link, Some(address))) {
            Some(GatewayRefusal::NextHop)
        } else {
            let is_neighbour = permanent.any(|it| self.is_of(it));
            is_neighbour.then_some(GatewayRefusal::Neighbour)
        }
    }

    /// Returns what to report about `neighbours`, those of the host, if one of them claims the
    /// gateway's address: its entry exists, but is not permanent. Any host on the link's network can
    /// cause such an entry, so it is no reason to refuse the gateway.
    pub fn claim(&self, neighbours: &[Neighbour]) -> Option<String> {
        let mut learnt = neighbours.iter().filter(|it| !it.is_permanent);
        let is_claimed = learnt.any(|it| self.is_of(it));
        is_claimed.then(|| format!("a host there claims {}", self.gateway))
    }

    fn is_of(&self, neighbour: &Neighbour) -> bool {
        (neighbour.link, neighbour.address) == (self.link, self.gateway)
    }

    fn expect_acceptable(&self, host: &Connection, name: &str) -> anyhow::Result<()> {
        let Self {
            gateway,
            subnet,
            connected,
            ..
        } = self;
        let neighbours = host.neighbours()?;
        if let Some(refusal) = self.refusal(&host.routes()?, &neighbours) {
            let reason = match own_address(host, self.link, *gateway)? {
                Some(own) => format!("this host has the gateway {gateway} as {own} on {name}"),
                None => {
                    format!("the gateway {gateway} belongs to {connected} on {name}, and {refusal}")
                }
            };
            let advice = "choose another subnet or gateway";
            bail!(Error::invalid("ipam", format!("{reason}; {advice}")));
        }
        let claim = self.claim(&neighbours);
        let claim = claim.map_or_else(String::new, |claim| format!("; {claim}"));
        note!(
            "{subnet} is a part of {connected} on {name}: this host cannot reach hosts on {name} that have \
             addresses of {subnet}{claim}"
        );
        Ok(())
    }
}

/// Rejects a gateway address that a host on another link's network has or is likely to have
/// ([`GatewayConflict::refusal`]). The host would otherwise answer ARP requests for the address of
/// its own neighbour. If the containers' network is only a part of the other link's network, and
/// nothing that the operator configured has the gateway's address, only writes a message to standard
/// error.
///
/// The function looks up the host's route to each gateway address that is not link-local. A route
/// is a conflict if its destinations are neighbours on another link ([`Route::is_connected`]). If
/// that link has no MAC, for example a tunnel, only a route whose destination is the gateway itself
/// is a conflict: such a link has no neighbours, and its network is often wider than the bridge's.
///
/// Without a bridge, an address that the host itself has is no conflict: the host's end of each
/// veth pair has the gateway address.
///
/// # Errors
/// - Code 7: the gateway belongs to another link; the error names the gateway, the route and that
///   link.
/// - The kernel refuses a request.
pub(crate) fn expect_free(
    host: &Connection,
    side: &HostSide,
    addressing: &Addressing,
) -> anyhow::Result<()> {
    let gateways = gateways(addressing);
    let addresses: Vec<_> = gateways.iter().map(|(gateway, _)| *gateway).collect();
    for ((gateway, subnet), route) in gateways.into_iter().zip(host.routes_to(&addresses)?) {
        let Some((connected, link)) = other_link(host, side, (gateway, route))? else {
            continue;
        };
        let conflict = GatewayConflict {
            gateway,
            subnet,
            connected,
            link: link.index,
        };
        conflict.expect_acceptable(host, &link.name)?;
    }
    Ok(())
}

/// Returns each gateway address of the host with the subnet of the container address that uses it.
/// Omits link-local gateways.
fn gateways(addressing: &Addressing) -> BTreeSet<(IpAddr, IpNetwork)> {
    let is_of_host = |gateway: &IpAddr| {
        let mut addresses = addressing.gateways.iter().map(IpNetwork::ip);
        !is_link_local(*gateway) && addresses.any(|it| it == *gateway)
    };
    let pairs = addressing.ips.iter().filter_map(|ip| {
        let gateway = ip.gateway.filter(is_of_host)?;
        Some((gateway, network_of(ip.address)))
    });
    pairs.collect()
}

/// Returns the destination of `route`, which leads to the gateway, and its link, if a neighbour on
/// this link may have the gateway's address. Returns `None` otherwise, also if the link is the one
/// that has the gateway addresses of `side`.
fn other_link(
    host: &Connection,
    side: &HostSide,
    (gateway, route): (IpAddr, Option<Route>),
) -> anyhow::Result<Option<(IpNetwork, Link)>> {
    let own = side.gateway_link().map(|link| link.index);
    let Some(route) = route.filter(Route::is_connected) else {
        return Ok(None);
    };
    let Some(index) = route.links().find(|index| Some(*index) != own) else {
        return Ok(None);
    };
    // Without a bridge, each veth pair has the gateway address on its host's end. So the address on
    // another link is no conflict.
    if own.is_none() && (route.is_local || own_address(host, index, gateway)?.is_some()) {
        return Ok(None);
    }
    let link = host.link_by_index(index)?;
    let is_conflict = link.mac.is_some() || route.destination.ip() == gateway;
    Ok(is_conflict.then_some((route.destination, link)))
}

/// Returns the address with its prefix length if the link has it. A route lookup alone cannot show
/// this, because the kernel makes no local route for a tentative address. The host's end of a veth
/// pair that a Go plugin made has a tentative address until duplicate address detection ends.
fn own_address(
    host: &Connection,
    link: u32,
    address: IpAddr,
) -> Result<Option<IpNetwork>, netlink::Error> {
    let addresses = host.addresses(link)?;
    let mut addresses = addresses.iter().map(|it| it.address);
    Ok(addresses.find(|it| it.ip() == address))
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: u32 = 2;

    fn refusal(subnet: &str, gateway: &str, neighbours: &[Neighbour]) -> Option<GatewayRefusal> {
        let conflict = GatewayConflict {
            gateway: gateway.parse().unwrap(),
            subnet: subnet.parse().unwrap(),
            connected: "10.0.0.0/8".parse().unwrap(),
            link: LINK,
        };
        conflict.refusal(&[], neighbours)
    }

    #[test]
    fn only_a_part_of_the_connected_network_that_contains_the_gateway_is_accepted() {
        for (subnet, gateway, expected) in [
            ("10.244.3.0/24", "10.244.3.1", None),
            ("10.0.0.0/9", "10.0.0.1", None),
            ("10.0.0.0/8", "10.0.0.1", Some(GatewayRefusal::Network)),
            ("0.0.0.0/0", "10.0.0.1", Some(GatewayRefusal::Network)),
            ("10.1.0.9/32", "10.1.0.1", Some(GatewayRefusal::Network)),
            ("192.0.2.0/24", "10.1.0.1", Some(GatewayRefusal::Network)),
        ] {
            assert_eq!(refusal(subnet, gateway, &[]), expected, "{subnet}");
        }
    }

    #[test]
    fn address_of_a_permanent_neighbour_on_the_link_is_refused() {
        let of = |link, address: &str, is_permanent| Neighbour {
            link,
            address: address.parse().unwrap(),
            is_permanent,
        };
        for (neighbour, expected) in [
            (of(LINK, "10.1.0.1", true), Some(GatewayRefusal::Neighbour)),
            (of(LINK, "10.1.0.1", false), None),
            (of(LINK, "10.1.0.2", true), None),
            (of(LINK + 1, "10.1.0.1", true), None),
        ] {
            let found = refusal("10.1.0.0/24", "10.1.0.1", &[neighbour]);
            assert_eq!(found, expected, "{neighbour:?}");
        }
    }
}
