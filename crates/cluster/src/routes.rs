//! Reads, creates, replaces and removes routes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use ipnetwork::IpNetwork;
use rtnetlink::Error;
use rtnetlink::packet_core::ErrorMessage;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteMessage, RouteType};

use crate::kernel::{AT_ONCE, Kernel, reason};
use crate::message::{self, Route};
use crate::peers::Peer;
use crate::problem::Problem;
use crate::way::DirectRoute;

/// The routes to one network.
#[derive(Default)]
pub(crate) struct Found {
    /// The own ones, by their metrics.
    pub own: BTreeMap<Option<u32>, RouteMessage>,
    /// The own route that refuses packets while there is no other one.
    pub refusal: Option<RouteMessage>,
    /// The protocol of another program's route.
    pub foreign: Option<u8>,
}

impl Found {
    /// Takes the routes that lead somewhere.
    pub fn take(&mut self) -> Self {
        Self {
            own: mem::take(&mut self.own),
            refusal: None,
            foreign: self.foreign.take(),
        }
    }
}

/// What happened to the routes of one network.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The routes that the kernel has. Packets take the first one.
    pub routes: Vec<Route>,
    /// The direct route beside one through a tunnel.
    pub tried: Option<DirectRoute>,
    /// The number of routes that were created, replaced or removed.
    pub changes: usize,
    pub problem: Option<Problem>,
}

impl Outcome {
    fn without_routes(problem: Problem) -> Self {
        Self {
            problem: Some(problem),
            ..Self::default()
        }
    }
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

    /// Makes the routes to one network, and then removes other own ones.
    pub(crate) async fn set(
        &self,
        (network, peer): (IpNetwork, &Peer),
        found: Found,
        hops: Result<Vec<Route>, Problem>,
    ) -> Result<Outcome, Error> {
        let routes = match hops {
            Ok(routes) => routes,
            Err(problem) => return self.without_route((peer, problem), found.own).await,
        };
        let node = peer.name.clone();
        if let (true, Some(protocol)) = (found.own.is_empty(), found.foreign) {
            return Ok(Outcome::without_routes(Problem::Foreign {
                node,
                network,
                protocol,
            }));
        }
        let (mut outcome, refused) = self.exchange(network, found.own, routes).await?;
        let is_reached = !outcome.routes.is_empty();
        let refused = refused.map(|it| reason(&it));
        outcome.problem = match (found.foreign, refused) {
            (Some(protocol), _) => Some(Problem::Foreign {
                node,
                network,
                protocol,
            }),
            (None, Some(reason)) if is_reached => Some(Problem::OneRefused {
                node,
                network,
                reason,
            }),
            (None, Some(reason)) => Some(Problem::Refused {
                node,
                network,
                reason,
            }),
            (None, None) => None,
        };
        Ok(outcome)
    }

    /// Creates and replaces the routes to one network, and then removes other ones of `own`, unless the
    /// kernel refuses all `routes`. Returns why it refuses one.
    async fn exchange(
        &self,
        network: IpNetwork,
        mut own: BTreeMap<Option<u32>, RouteMessage>,
        routes: Vec<Route>,
    ) -> Result<(Outcome, Option<ErrorMessage>), Error> {
        let (mut outcome, mut refused) = (Outcome::default(), None);
        for route in routes {
            let present = own.get(&route.metric);
            if present.and_then(Route::read) != Some(route) {
                let mut request = self.handle.route().add(route.message(network));
                if present.is_some() {
                    request = request.replace();
                }
                match request.execute().await {
                    Ok(()) => outcome.changes += 1,
                    Err(Error::NetlinkError(error)) => {
                        refused = Some(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            own.remove(&route.metric);
            outcome.routes.push(route);
        }
        if outcome.routes.is_empty() {
            return Ok((outcome, refused));
        }
        if outcome.routes.len() > 1 {
            let mut routes = outcome.routes.iter();
            outcome.tried = routes.find_map(|it| DirectRoute::of(network, *it));
        }
        outcome.changes += own.len();
        for route in own.into_values() {
            self.remove(route).await?;
        }
        Ok((outcome, refused))
    }

    /// Keeps the routes to a node that can have none, unless they lead directly to an address that the
    /// node no longer has: its pods' packets must not arrive at another node. Removes all routes if
    /// packets have to be encrypted.
    async fn without_route(
        &self,
        (peer, problem): (&Peer, Problem),
        own: BTreeMap<Option<u32>, RouteMessage>,
    ) -> Result<Outcome, Error> {
        let is_encrypted = matches!(problem, Problem::NoWireGuard { .. });
        let is_kept =
            |it: &Route| !is_encrypted && (it.is_onlink || it.gateway == Some(peer.address));
        let mut outcome = Outcome::without_routes(problem);
        for route in own.into_values() {
            if let Some(kept) = Route::read(&route).filter(is_kept) {
                outcome.routes.push(kept);
            } else {
                self.remove(route).await?;
                outcome.changes += 1;
            }
        }
        Ok(outcome)
    }

    /// Removes the route, unless it does not exist any more.
    pub(crate) async fn remove(&self, route: RouteMessage) -> Result<(), Error> {
        match self.handle.route().del(route).execute().await {
            // Another program has just deleted it, or its link.
            Ok(()) | Err(Error::NetlinkError(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the direct routes that packets take, such as those that an earlier agent made.
    ///
    /// # Errors
    /// The socket failed, or the kernel does not list its routes.
    pub async fn direct_routes(&self) -> Result<BTreeSet<DirectRoute>, Error> {
        let found = self.routes().await?.into_iter();
        let used = found.filter_map(|(network, mut it)| {
            DirectRoute::of(network, Route::read(&it.own.remove(&None)?)?)
        });
        Ok(used.collect())
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
                    found.own.insert(message::metric(&route), route);
                } else {
                    found.foreign = Some(route.header.protocol.into());
                }
            }
        }
        Ok(found)
    }

    /// Returns the routes that packets to the addresses take, of those that have one.
    pub(crate) async fn routes_to(
        &self,
        addresses: BTreeSet<IpAddr>,
    ) -> Result<BTreeMap<IpAddr, RouteMessage>, Error> {
        let requests = addresses.into_iter().map(|it| self.route_to(it));
        let mut answers = stream::iter(requests.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
        let mut routes = BTreeMap::new();
        while let Some((address, route)) = answers.try_next().await? {
            routes.extend(route.map(|it| (address, it)));
        }
        Ok(routes)
    }

    async fn route_to(&self, address: IpAddr) -> Result<(IpAddr, Option<RouteMessage>), Error> {
        let request = self.handle.route().get(message::to(address.into()));
        let route = match request.execute().try_next().await {
            Ok(route) => route.filter(|it| it.header.kind == RouteType::Unicast),
            // No route, or one that refuses the packets.
            Err(Error::NetlinkError(_)) => None,
            Err(error) => return Err(error),
        };
        Ok((address, route))
    }
}
