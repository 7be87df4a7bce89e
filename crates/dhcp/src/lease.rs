//! A lease, as the server's answer describes it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use cni::AddResult;
use cni::result::{IpConfig, Route};
use ipnetwork::{IpNetwork, Ipv4Network, ipv4_mask_to_prefix};
use netlink::SavedRoute;
use serde::{Deserialize, Serialize};

use crate::clock::{jittered, now};
use crate::reply::{Reply, option};

/// An address, what belongs to it, and how long it may be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The address with the prefix length of its network.
    pub address: Ipv4Network,
    /// The first router.
    pub gateway: Option<Ipv4Addr>,
    /// Routes; `None` as the next hop means a destination on the link itself.
    pub routes: Vec<(Ipv4Network, Option<Ipv4Addr>)>,
    /// The server; unspecified if it is not known yet, because another daemon got the lease.
    pub server: Ipv4Addr,
    /// The MAC that the server's answer came from: its own, or that of a relay agent.
    pub server_mac: [u8; 6],
    /// When to renew the lease (T1), as the time since boot.
    pub renew: Duration,
    /// When to ask any server (T2), as the time since boot.
    pub rebind: Duration,
    /// When the address must no longer be used, as the time since boot.
    pub end: Duration,
}

impl Lease {
    /// Reads an offer or acknowledgement.
    ///
    /// # Errors
    /// The answer lacks the server, a usable address or its subnet mask.
    pub(crate) fn read(reply: &Reply<'_>) -> anyhow::Result<Self> {
        let server = reply.server().context("it names no server")?;
        let address = reply.message.yiaddr();
        let is_usable = !(address.is_unspecified()
            || address.is_multicast()
            || address.is_broadcast()
            || address.is_loopback());
        ensure!(is_usable, "it has the address {address}");
        let mask = option!(reply, SubnetMask)
            .with_context(|| format!("it has no subnet mask for {address}"))?;
        let prefix = ipv4_mask_to_prefix(mask).context("read the subnet mask")?;
        let gateway = option!(reply, Router).and_then(|it| hop(*it.first()?));
        let seconds = |it: u32| Duration::from_secs(it.into());
        let time = option!(reply, AddressLeaseTime)
            .map(seconds)
            .unwrap_or(DEFAULT_TIME);
        ensure!(!time.is_zero(), "the lease of {address} has no time");
        // Some servers send 0, or the lease time, for times that the client shall choose.
        let rebind = option!(reply, Rebinding)
            .map(seconds)
            .filter(|it| !it.is_zero() && *it < time);
        let rebind = rebind.unwrap_or(time * 7 / 8);
        let renew = option!(reply, Renewal)
            .map(seconds)
            .filter(|it| !it.is_zero() && *it <= rebind);
        let renew = jittered(renew.unwrap_or(time / 2));
        let now = now();
        Ok(Self {
            address: Ipv4Network::new(address, prefix)?,
            gateway,
            routes: routes(reply, gateway),
            server,
            server_mac: reply.from.0,
            renew: now + renew.min(rebind),
            rebind: now + rebind,
            end: now + time,
        })
    }

    /// Returns the lease of a result that another daemon gave. It has to be confirmed at once. Until
    /// then, its end is unknown, and so is which of the routes are its own.
    pub(crate) fn of_result(result: &AddResult) -> anyhow::Result<Self> {
        let address = result.ips.iter().find_map(|it| match it.address {
            IpNetwork::V4(address) => Some((address, it.gateway.and_then(v4))),
            IpNetwork::V6(_) => None,
        });
        let (address, gateway) = address.context("the result has no IPv4 address")?;
        Ok(Self {
            address,
            gateway,
            routes: Vec::new(),
            server: Ipv4Addr::UNSPECIFIED,
            server_mac: BROADCAST_MAC,
            renew: Duration::ZERO,
            rebind: Duration::ZERO,
            end: Duration::MAX,
        })
    }

    /// Returns whether a server has confirmed the lease to this daemon.
    pub fn is_confirmed(&self) -> bool {
        !self.server.is_unspecified()
    }

    /// Returns the network, the address and the gateway.
    pub(crate) fn addresses(&self) -> [Option<Ipv4Network>; 3] {
        let network = network(self.address.ip(), self.address.prefix());
        let gateway = self.gateway.map(Ipv4Network::from);
        [network, Some(self.address.ip().into()), gateway]
    }

    /// Returns whether `route` is one of the lease.
    pub(crate) fn has(&self, route: &SavedRoute) -> bool {
        let mut routes = self.routes.iter();
        routes.any(|(destination, gateway)| {
            let is_same = route.route.destination == IpNetwork::from(*destination);
            is_same && route.route.gateway == gateway.map(IpAddr::from)
        })
    }

    /// Returns the result of an ADD. `priority` is the metric of the routes; 0 for none.
    pub(crate) fn result(&self, priority: u32) -> AddResult {
        let ip = IpConfig {
            gateway: self.gateway.map(IpAddr::from),
            ..IpConfig::of(self.address.into())
        };
        let route = |(destination, gateway): &(Ipv4Network, Option<Ipv4Addr>)| Route {
            gw: gateway.map(IpAddr::from),
            scope: gateway.is_none().then_some(SCOPE_LINK),
            priority: Some(priority).filter(|it| *it != 0),
            ..Route::to((*destination).into())
        };
        AddResult {
            ips: vec![ip],
            routes: self.routes.iter().map(route).collect(),
            ..AddResult::default()
        }
    }
}

/// Returns the routes of an answer. Classless routes (option 121) replace static ones (option 33)
/// and the default route (RFC 3442).
fn routes(reply: &Reply<'_>, gateway: Option<Ipv4Addr>) -> Vec<(Ipv4Network, Option<Ipv4Addr>)> {
    let route = |destination, prefix, gateway| Some((network(destination, prefix)?, hop(gateway)));
    let classless = option!(reply, ClasslessStaticRoute).unwrap_or_default();
    if !classless.is_empty() {
        let routes = classless.into_iter();
        let routes = routes.filter_map(|(to, by)| route(to.addr(), to.prefix_len(), by));
        return routes.collect();
    }
    let fixed = option!(reply, StaticRoutingTable).unwrap_or_default();
    let fixed = fixed.into_iter();
    let fixed = fixed.filter_map(|(to, by)| route(to, class(to), by));
    let default = gateway.and_then(|it| route(Ipv4Addr::UNSPECIFIED, 0, it));
    fixed.chain(default).collect()
}

fn network(address: Ipv4Addr, prefix: u8) -> Option<Ipv4Network> {
    let address = Ipv4Network::new(address, prefix).ok()?;
    Ipv4Network::new(address.network(), prefix).ok()
}

fn hop(gateway: Ipv4Addr) -> Option<Ipv4Addr> {
    Some(gateway).filter(|it| !it.is_unspecified())
}

/// Returns the prefix length that the class of an address implies (RFC 791).
fn class(address: Ipv4Addr) -> u8 {
    match address.octets() {
        [0, 0, 0, 0] => 0,
        [0..128, ..] => 8,
        [128..192, ..] => 16,
        _ => 24,
    }
}

fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => hop(address),
        IpAddr::V6(_) => None,
    }
}

pub(crate) const BROADCAST_MAC: [u8; 6] = [0xff; 6];

/// Time of a lease for which the server names none, as in the Go plugin.
const DEFAULT_TIME: Duration = Duration::from_hours(1);

/// Scope of a route to a destination on the link, as in rtnetlink(7).
const SCOPE_LINK: u8 = 253;
