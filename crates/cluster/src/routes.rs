//! Reads, creates, replaces and removes routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use ipnetwork::IpNetwork;
use rtnetlink::Error;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteMessage, RouteType};

use crate::kernel::{AT_ONCE, Kernel, reason};
use crate::message::{self, Route};
use crate::peers::Peer;
use crate::problem::Problem;

/// The routes to one network.
#[derive(Default)]
pub(crate) struct Found {
    pub own: Option<RouteMessage>,
    /// The own route that refuses packets while there is no other one.
    pub refusal: Option<RouteMessage>,
    /// The protocol of another program's route.
    pub foreign: Option<u8>,
}

impl Found {
    /// Takes the routes that lead somewhere.
    pub fn take(&mut self) -> Self {
        Self {
            own: self.own.take(),
            refusal: None,
            foreign: self.foreign.take(),
        }
    }
}

/// What happened to the route of one network.
pub(crate) enum Outcome {
    Kept(Route),
    Set(Route),
    Removed,
    Missing,
}

impl Kernel {
    /// Makes a route that refuses packets to each of the networks, unless another route is better.
    /// Such a packet would leave this node unencrypted through the default route. Returns the number of
    /// changes, and the routes that the kernel refuses.
    pub(crate) async fn refuse(
        &self,
        networks: &BTreeSet<IpNetwork>,
        found: &mut BTreeMap<IpNetwork, Found>,
    ) -> Result<(usize, Vec<Problem>), Error> {
        let is_new = |it: &&IpNetwork| {
            let found = found.get_mut(it);
            found.and_then(|it| it.refusal.take()).is_none()
        };
        let new: Vec<_> = networks.iter().filter(is_new).collect();
        let (mut changes, mut problems) = (0, Vec::new());
        for network in new {
            let add = self.handle.route().add(message::refusal(*network));
            match add.execute().await {
                Ok(()) => changes += 1,
                Err(Error::NetlinkError(error)) => problems.push(Problem::Unrefused {
                    network: *network,
                    reason: reason(&error),
                }),
                Err(error) => return Err(error),
            }
        }
        Ok((changes, problems))
    }

    /// Makes the route to one network.
    pub(crate) async fn set(
        &self,
        (network, peer): (IpNetwork, &Peer),
        found: Found,
        hop: Result<Route, Problem>,
    ) -> Result<(Outcome, Option<Problem>), Error> {
        let node = peer.name.clone();
        let current = found.own.as_ref().and_then(Route::read);
        let foreign = found.foreign.map(|protocol| {
            let node = node.clone();
            Problem::Foreign {
                node,
                network,
                protocol,
            }
        });
        let route = match hop {
            Ok(route) => route,
            Err(problem) => return self.without_route((peer, problem), found.own).await,
        };
        if current == Some(route) {
            return Ok((Outcome::Kept(route), foreign));
        }
        if found.own.is_none() && foreign.is_some() {
            return Ok((Outcome::Missing, foreign));
        }
        let mut request = self.handle.route().add(route.message(network));
        if found.own.is_some() {
            request = request.replace();
        }
        match request.execute().await {
            Ok(()) => Ok((Outcome::Set(route), foreign)),
            Err(Error::NetlinkError(error)) => {
                let reason = reason(&error);
                let refused = Problem::Refused {
                    node,
                    network,
                    reason,
                };
                Ok((Outcome::Missing, Some(refused)))
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the route to a node that can have none, if it leads directly to an address that the node
    /// no longer has: its pods' packets must not arrive at another node. Removes any route if packets
    /// have to be encrypted.
    async fn without_route(
        &self,
        (peer, problem): (&Peer, Problem),
        own: Option<RouteMessage>,
    ) -> Result<(Outcome, Option<Problem>), Error> {
        let Some(own) = own else {
            return Ok((Outcome::Missing, Some(problem)));
        };
        let is_encrypted = matches!(problem, Problem::NoWireGuard { .. });
        let is_kept = |it: &Route| it.is_onlink || it.gateway == Some(peer.address);
        let current = Route::read(&own).filter(|it| !is_encrypted && is_kept(it));
        if let Some(route) = current {
            return Ok((Outcome::Kept(route), Some(problem)));
        }
        self.remove(own).await?;
        Ok((Outcome::Removed, Some(problem)))
    }

    /// Removes the route, unless it does not exist any more.
    pub(crate) async fn remove(&self, route: RouteMessage) -> Result<(), Error> {
        match self.handle.route().del(route).execute().await {
            // Another program has just deleted it, or its link.
            Ok(()) | Err(Error::NetlinkError(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the routes of the main table, by their destinations.
    pub(crate) async fn routes(&self) -> Result<BTreeMap<IpNetwork, Found>, Error> {
        let mut found = BTreeMap::<_, Found>::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut routes = self.handle.route().get(message::all(family)).execute();
            while let Some(route) = routes.try_next().await? {
                let Some(network) = message::destination(&route) else {
                    continue;
                };
                let found = found.entry(network).or_default();
                if message::is_own(&route) && message::is_refusal(&route) {
                    found.refusal = Some(route);
                } else if message::is_own(&route) {
                    found.own = Some(route);
                } else {
                    found.foreign = Some(route.header.protocol.into());
                }
            }
        }
        Ok(found)
    }

    /// Returns the links through which packets to the addresses leave, of those addresses to which
    /// they need no router.
    pub(crate) async fn links_to(
        &self,
        addresses: BTreeSet<IpAddr>,
    ) -> Result<BTreeMap<IpAddr, u32>, Error> {
        let requests = addresses.into_iter().map(|it| self.link_to(it));
        let mut answers = stream::iter(requests.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
        let mut links = BTreeMap::new();
        while let Some((address, link)) = answers.try_next().await? {
            links.extend(link.map(|it| (address, it)));
        }
        Ok(links)
    }

    async fn link_to(&self, address: IpAddr) -> Result<(IpAddr, Option<u32>), Error> {
        let request = self.handle.route().get(message::to(address.into()));
        match request.execute().try_next().await {
            Ok(Some(route)) => {
                let is_direct =
                    route.header.kind == RouteType::Unicast && !message::has_gateway(&route);
                Ok((address, message::link(&route).filter(|_| is_direct)))
            }
            // No route, or one that refuses the packets.
            Ok(None) | Err(Error::NetlinkError(_)) => Ok((address, None)),
            Err(error) => Err(error),
        }
    }
}
