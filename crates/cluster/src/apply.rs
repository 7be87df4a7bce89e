//! Applies the desired state to the kernel.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use ipnetwork::IpNetwork;
use rtnetlink::Error;

use crate::kernel::{AT_ONCE, Kernel};
use crate::mesh::{DEVICE, Mesh};
use crate::message::{self, Route};
use crate::neighbours::{Entries, Stale};
use crate::peers::Peers;
use crate::problem::Problem;
use crate::routes::{Found, Outcome};
use crate::tunnel::{NAMES, Tunnel, mac};
use crate::way::{DirectRoute, Way};

/// What [`Kernel::apply`] does with own routes to networks that no node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// Keeps them, because the list of nodes may be outdated.
    Keep,
    /// Removes them, because the list of nodes is complete.
    Remove,
}

/// What [`Kernel::apply`] has found and done.
#[derive(Debug, Default)]
pub struct Applied {
    /// The number of networks with a route.
    pub routes: usize,
    /// The number of networks to whose nodes' own addresses packets go.
    pub direct_routes: usize,
    /// The number of routes, neighbours and devices that were created, replaced or removed.
    pub changes: usize,
    /// The smallest MTU of the VXLAN or WireGuard devices; `None` if there is none, or if one is
    /// missing.
    pub mtu: Option<u32>,
    /// Indexes of the links that the routes or the tunnels use.
    pub links: BTreeSet<u32>,
    /// Indexes of the VXLAN and WireGuard devices.
    pub tunnels: BTreeSet<u32>,
    /// The direct routes beside tunnels, whether packets take them or not.
    pub direct: BTreeSet<DirectRoute>,
    /// Why networks have no route.
    pub problems: BTreeSet<Problem>,
}

impl Kernel {
    /// Creates and replaces routes to the networks of `peers`, and then removes `others`. Replaces a
    /// route in one step, so that no packet is lost. Changes no route of another program.
    ///
    /// # Errors
    /// The socket failed, or the kernel does not list its routes.
    pub async fn apply(
        &mut self,
        peers: &Peers,
        way: &Way,
        others: Others,
    ) -> Result<Applied, Error> {
        let mut applied = Applied {
            problems: peers.problems.clone(),
            ..Applied::default()
        };
        let mut found = self.routes().await?;
        // Before a device, so that no packet leaves in the clear meanwhile.
        self.encrypt(peers, &mut found, &mut applied).await?;
        let (hops, stale) = match way {
            Way::Direct => {
                let direct = self.direct(peers).await?.into_iter();
                let hops = direct.map(|it| (it.network, vec![it.route()]));
                (hops.collect(), Vec::new())
            }
            Way::Vxlan(tunnels) => self.through_all(tunnels, peers, &mut applied).await?,
            Way::Auto(tunnels, proven) => {
                let (hops, stale) = self.through_all(tunnels, peers, &mut applied).await?;
                let direct = self.direct(peers).await?;
                (beside(hops, direct, (tunnels, proven)), stale)
            }
            Way::WireGuard(mesh) => {
                let hops = self.through_wireguard(mesh.as_deref(), (peers, others), &mut applied);
                (hops.await?, Vec::new())
            }
        };
        let requests = peers.networks.iter().map(|(network, peer)| {
            let found = found.get_mut(network).map(Found::take).unwrap_or_default();
            let hops = hops.get(network).cloned();
            let hops = hops.ok_or_else(|| way.unreachable(*network, peer));
            self.set((*network, peer), found, hops)
        });
        let mut outcomes = stream::iter(requests.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
        while let Some(outcome) = outcomes.try_next().await? {
            applied.count(outcome);
        }
        if others == Others::Remove {
            applied.changes += self.clean(found, stale, (way, peers)).await?;
        }
        Ok(applied)
    }

    /// Removes own routes, entries and devices that are not desired. Returns their number.
    async fn clean(
        &self,
        routes: BTreeMap<IpNetwork, Found>,
        entries: Vec<Stale>,
        (way, peers): (&Way, &Peers),
    ) -> Result<usize, Error> {
        // Open connections to pods of a node that has left must not go on in the clear.
        let stays = |network: &IpNetwork| {
            matches!(way, Way::WireGuard(_))
                && !peers.encrypted.iter().any(|it| is_within(*network, *it))
        };
        let routes = routes.into_iter().flat_map(|(network, found)| {
            let refusal = found.refusal.filter(|_| !stays(&network));
            found.own.into_values().chain(refusal)
        });
        let requests: Vec<_> = routes.map(|it| self.remove(it)).collect();
        let mut count = requests.len();
        let mut removals = stream::iter(requests).buffer_unordered(AT_ONCE);
        while removals.try_next().await?.is_some() {}
        for entries in entries {
            count += self.remove_entries(entries).await?;
        }
        for name in NAMES {
            if !way.tunnels().iter().any(|it| it.name == name) {
                count += usize::from(self.remove_device(name).await?);
            }
        }
        if !matches!(way, Way::WireGuard(_)) {
            count += usize::from(self.remove_wireguard().await?);
        }
        Ok(count)
    }

    /// Keeps packets to nodes that are reached by WireGuard alone off other ways.
    async fn encrypt(
        &self,
        peers: &Peers,
        found: &mut BTreeMap<IpNetwork, Found>,
        applied: &mut Applied,
    ) -> Result<(), Error> {
        let (changes, problems) = self.refuse(&peers.encrypted, found).await?;
        applied.changes += changes;
        applied.problems.extend(problems);
        for network in &peers.encrypted {
            if peers.networks.contains_key(network) {
                continue;
            }
            let own = found.get_mut(network).map(Found::take);
            for route in own.unwrap_or_default().own.into_values() {
                self.remove(route).await?;
                applied.changes += 1;
            }
        }
        Ok(())
    }

    /// Makes the WireGuard device. Returns the routes through it: also through one that stands, if it
    /// cannot be made now, because it lets no packet pass unencrypted.
    async fn through_wireguard(
        &mut self,
        mesh: Option<&Mesh>,
        (peers, others): (&Peers, Others),
        applied: &mut Applied,
    ) -> Result<Hops, Error> {
        let made = match mesh {
            Some(mesh) => self.wireguard(mesh, others).await?.map(Some),
            None => Ok(None),
        };
        let problem = made.as_ref().err().cloned();
        applied.problems.extend(problem);
        let link = if let Ok(Some((device, changes))) = made {
            applied.changes += changes;
            applied.problems.extend(device.problems);
            applied.links.extend(device.uplinks);
            applied.mtu = Some(device.mtu);
            device.index
        } else {
            let link = self.link(DEVICE).await?;
            let Some(link) = link.filter(|it| it.is_wireguard() && it.is_up) else {
                return Ok(Hops::new());
            };
            link.index
        };
        applied.links.insert(link);
        applied.tunnels.insert(link);
        let route = Route {
            gateway: None,
            link,
            is_onlink: false,
            metric: None,
            source: None,
        };
        Ok(peers.networks.keys().map(|it| (*it, vec![route])).collect())
    }

    /// Returns the routes through the nodes' own addresses, of those nodes to which packets need no
    /// router.
    async fn direct(&self, peers: &Peers) -> Result<Vec<DirectRoute>, Error> {
        let addresses: BTreeSet<_> = peers.networks.values().map(|it| it.address).collect();
        let found = self.routes_to(addresses).await?;
        let routes = peers.networks.iter().filter_map(|(network, peer)| {
            let route = found.get(&peer.address);
            Some(DirectRoute {
                network: *network,
                gateway: peer.address,
                link: message::link(route.filter(|it| !message::has_gateway(it))?)?,
            })
        });
        Ok(routes.collect())
    }

    /// Makes the devices, and their entries. Returns the routes through them, and entries to remove.
    async fn through_all(
        &self,
        tunnels: &[Tunnel],
        peers: &Peers,
        applied: &mut Applied,
    ) -> Result<(Hops, Vec<Stale>), Error> {
        let (mut hops, mut stale) = (Hops::new(), Vec::new());
        for tunnel in tunnels {
            match self.through(tunnel, peers, applied).await? {
                Ok((more, entries)) => {
                    hops.extend(more);
                    stale.push(entries);
                }
                Err(problem) => applied.problems.extend([problem]),
            }
        }
        if applied.tunnels.len() < tunnels.len() {
            applied.mtu = None;
        }
        Ok((hops, stale))
    }

    /// Makes the device, and its entries. Returns the routes through it, and entries to remove.
    async fn through(
        &self,
        tunnel: &Tunnel,
        peers: &Peers,
        applied: &mut Applied,
    ) -> Result<Result<(Hops, Stale), Problem>, Error> {
        let device = match self.device(tunnel, peers).await? {
            Ok(device) => device,
            Err(problem) => return Ok(Err(problem)),
        };
        let link = device.index;
        applied.problems.extend(device.problems);
        applied.links.insert(link);
        applied.links.extend(device.uplinks);
        applied.tunnels.insert(link);
        applied.mtu = applied.mtu.into_iter().chain([device.mtu]).min();
        let mut entries = Entries::default();
        let mut routes = Hops::new();
        let networks = peers.networks.iter();
        for (network, peer) in networks.filter(|(network, _)| tunnel.carries(**network)) {
            let mac = mac(&peer.name);
            let gateway = Tunnel::gateway(*network, mac);
            entries.neighbours.insert(gateway, mac);
            entries.forwarding.insert(mac, peer.address);
            let route = Route {
                gateway: Some(gateway),
                link,
                is_onlink: true,
                metric: None,
                source: None,
            };
            routes.insert(*network, vec![route]);
        }
        let set = self.set_entries(link, entries).await?;
        applied.changes += set.changes;
        let refused = set.refused.map(|reason| Problem::Entries {
            device: tunnel.name.to_owned(),
            reason,
        });
        applied.problems.extend(refused);
        Ok(Ok((routes, set.stale)))
    }
}

impl Applied {
    fn count(&mut self, outcome: Outcome) {
        let Outcome {
            routes,
            tried,
            changes,
            problem,
        } = outcome;
        self.routes += usize::from(!routes.is_empty());
        self.direct_routes += usize::from(routes.first().is_some_and(Route::is_direct));
        self.links.extend(routes.iter().map(|it| it.link));
        self.direct.extend(tried);
        self.changes += changes;
        self.problems.extend(problem);
    }
}

/// Returns the routes through the tunnels, and beside each one the direct route. Packets take the direct
/// one if it is `proven`. The other one has the larger metric: only packets that name the link take it.
fn beside(
    mut hops: Hops,
    direct: Vec<DirectRoute>,
    (tunnels, proven): (&[Tunnel], &BTreeSet<DirectRoute>),
) -> Hops {
    for direct in direct {
        let Some(routes) = hops.get_mut(&direct.network) else {
            continue;
        };
        let mut route = direct.route();
        let tunnel = tunnels.iter().find(|it| it.carries(direct.network));
        route.source = tunnel.map(|it| it.address);
        routes.push(route);
        if proven.contains(&direct) {
            routes.reverse();
        }
        for other in routes.iter_mut().skip(1) {
            other.metric = Some(UNUSED);
        }
    }
    hops
}

/// Returns whether `network` is a part of `other`, or the same.
fn is_within(network: IpNetwork, other: IpNetwork) -> bool {
    other.contains(network.ip()) && other.prefix() <= network.prefix()
}

/// The routes of each network. Packets take the first one.
type Hops = BTreeMap<IpNetwork, Vec<Route>>;

/// Metric of the one of two routes that packets do not take.
const UNUSED: u32 = 2048;
