//! Finds the links that carry the packets between nodes.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use rtnetlink::Error;

use crate::kernel::Kernel;
use crate::message;

/// The links that carry the packets between nodes.
pub(crate) struct Underlay {
    /// Their smallest MTU.
    pub mtu: u32,
    /// Their indexes.
    pub links: BTreeSet<u32>,
}

impl Kernel {
    /// Returns the link with this node's address, or, if it leads to no other host, those to `peers`:
    /// the node announces its address by a routing protocol. `None` if no link has the address.
    pub(crate) async fn underlay(
        &self,
        local: IpAddr,
        peers: impl Iterator<Item = IpAddr>,
    ) -> Result<Option<Underlay>, Error> {
        let request = self.handle.address().get().set_address_filter(local);
        let Some(found) = request.execute().try_next().await? else {
            return Ok(None);
        };
        let own = self.link_at(found.header.index).await?;
        let Some(own) = own else {
            return Ok(None);
        };
        let mut underlay = Underlay {
            mtu: own.mtu,
            links: BTreeSet::from([own.index]),
        };
        if !own.is_loopback {
            return Ok(Some(underlay));
        }
        let peers = peers.filter(|it| it.is_ipv4() == local.is_ipv4()).collect();
        let mut routes = self.routes_to(peers).await?;
        if routes.is_empty() {
            let elsewhere = ELSEWHERE.into_iter();
            let elsewhere = elsewhere.filter(|it| it.is_ipv4() == local.is_ipv4());
            routes = self.routes_to(elsewhere.collect()).await?;
        }
        let links: BTreeSet<_> = routes.values().filter_map(message::link).collect();
        let mut mtus = Vec::new();
        for link in &links {
            mtus.extend(self.link_at(*link).await?.map(|it| it.mtu));
        }
        let smallest = mtus.into_iter().min();
        underlay.mtu = smallest.unwrap_or_else(|| own.mtu.min(ETHERNET_MTU));
        underlay.links.extend(links);
        Ok(Some(underlay))
    }
}

/// The MTU that counts as long as no route shows the links.
const ETHERNET_MTU: u32 = 1500;

/// Addresses of documentation (RFC 5737, RFC 3849), to which only the default route leads.
const ELSEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1)),
];
