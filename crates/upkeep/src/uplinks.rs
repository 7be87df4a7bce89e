//! Reads the node's uplinks, which are the links of its default routes. Compares the MTUs of pods
//! with the MTU that a new pod would get.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use attach::MtuChoice;
use cni::NetworkName;
use netlink::{Connection, Link, LinkKind, Route};
use runtime::{Conflist, Directories, may_exist};
use serde_json::Value;

/// The node's uplinks, and the numbers of pods with an outdated MTU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uplinks {
    /// The links of the default routes, by index.
    pub links: BTreeMap<u32, Uplink>,
    /// For each network, the number of pods whose MTU differs from the MTU that ADD would set now.
    pub other_mtu: BTreeMap<NetworkName, usize>,
}

/// A link of a default route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uplink {
    /// The name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses of the link, without link-local ones. If the kernel masquerades a packet that
    /// leaves through this link, it chooses one of these addresses as the source.
    pub addresses: BTreeSet<IpAddr>,
}

impl Uplinks {
    /// Reads the uplinks, and compares the MTU of each pod with the MTU that a new pod of its
    /// network would get. Takes the MTU of a pod from the host's end of its veth pair: ADD gave
    /// both ends the same MTU, and a pod cannot change the MTU of the host's end.
    ///
    /// # Errors
    /// The cache cannot be read. The kernel refuses a request.
    pub fn read(directories: &Directories) -> anyhow::Result<Self> {
        let host = Connection::open()?;
        let links = host.links()?;
        Ok(Self {
            links: uplinks(&host, &links)?,
            other_mtu: other_mtu(directories, &host, &links)?,
        })
    }
}

fn uplinks(host: &Connection, links: &[Link]) -> Result<BTreeMap<u32, Uplink>, netlink::Error> {
    let routes = host.default_routes_in_use()?;
    let carriers: BTreeSet<_> = routes.iter().flat_map(Route::links).collect();
    let addresses = host.every_address()?;
    let links = links.iter().filter(|it| carriers.contains(&it.index));
    let uplinks = links.map(|link| {
        let own = addresses.iter().filter(|it| it.link == link.index);
        let own = own.filter(|it| !it.is_link_local);
        let uplink = Uplink {
            name: link.name.clone(),
            mtu: link.mtu,
            addresses: own.map(|it| it.address.ip()).collect(),
        };
        (link.index, uplink)
    });
    Ok(uplinks.collect())
}

/// Counts for each configured network the pods whose MTU differs from the MTU that an ADD would set
/// now.
fn other_mtu(
    directories: &Directories,
    host: &Connection,
    links: &[Link],
) -> anyhow::Result<BTreeMap<NetworkName, usize>> {
    let pairs = links.iter().filter(|it| it.kind == LinkKind::Veth);
    let pairs = pairs.filter_map(|it| Some((it.alias.as_deref()?, it.mtu)));
    let mtus: BTreeMap<_, _> = pairs.collect();
    let mut wanted = BTreeMap::new();
    let mut others = BTreeMap::new();
    for (attachment, entry) in directories.cache.entries()?.into_iter().flatten() {
        let Some(mtu) = mtus.get(attachment.owner().as_str()) else {
            continue;
        };
        let network = &attachment.network;
        let wanted = wanted
            .entry(network.clone())
            .or_insert_with(|| wanted_mtu(directories, host, network));
        if wanted.is_some_and(|it| it != *mtu) && may_exist(entry.netns()) {
            *others.entry(network.clone()).or_default() += 1;
        }
    }
    Ok(others)
}

/// Returns the MTU that a new pod of the network would get. Returns `None` if the network is not
/// configured any more, or its configuration is invalid, because it then gets no new pods. Also
/// returns `None` if the kernel refuses a request.
fn wanted_mtu(directories: &Directories, host: &Connection, network: &NetworkName) -> Option<u32> {
    let network = Conflist::find(&directories.networks, network.as_str()).ok()?;
    let first = network.plugins.first()?;
    let number = |key| {
        let value = first.key(key).map_or(Some(0), Value::as_u64);
        value.and_then(|it| u32::try_from(it).ok())
    };
    let choice = MtuChoice::parse(number("mtu")?, number("mtuOverhead")?).ok()?;
    Some(choice.find(host).ok()?.0)
}
