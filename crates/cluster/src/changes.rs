//! Events after which the kernel may not have the desired routes any more.

use std::collections::BTreeSet;

use futures::StreamExt as _;
use futures::channel::mpsc::UnboundedReceiver;
use ipnetwork::IpNetwork;
use rtnetlink::packet_core::{NLM_F_REPLACE, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressMessage, AddressScope};
use rtnetlink::packet_route::route::RouteMessage;
use rtnetlink::sys::SocketAddr;
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::task::JoinSet;

use crate::message;

/// What the desired routes depend on.
#[derive(Debug, Default)]
pub struct Concerns {
    /// Indexes of the links that routes use or used.
    pub links: BTreeSet<u32>,
    /// Indexes of the VXLAN and WireGuard devices.
    pub tunnels: BTreeSet<u32>,
    /// The networks to which routes lead.
    pub networks: BTreeSet<IpNetwork>,
}

/// A socket that receives the kernel's events about links, addresses and routes.
pub struct Changes {
    messages: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    /// The task that reads the socket. It ends when this value is dropped.
    _reader: JoinSet<()>,
}

impl Changes {
    /// Opens the socket. Has to be called in a runtime of tokio, and before the routes are read.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn open() -> std::io::Result<Self> {
        let (connection, _, messages) = new_multicast_connection(&GROUPS)?;
        let mut reader = JoinSet::new();
        reader.spawn(connection);
        Ok(Self {
            messages,
            _reader: reader,
        })
    }

    /// Waits for an event after which routes may be missing, or other routes may be possible:
    ///
    /// - An own route was deleted, or another program replaced a route to one of the networks.
    /// - One of the links changed.
    /// - One of these devices lost a neighbour, or its addresses changed.
    /// - The host has another address.
    /// - The kernel dropped events.
    ///
    /// Returns `None` if the socket failed. May be dropped while it waits.
    pub async fn next(&mut self, concerns: &Concerns) -> Option<()> {
        loop {
            let (message, _) = self.messages.next().await?;
            let is_concern = match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
                    let is_replacement = message.header.flags & NLM_F_REPLACE != 0;
                    is_replacement && !message::is_own(&route) && concerns.has_network(&route)
                }
                NetlinkPayload::InnerMessage(event) => concerns.include(&event),
                NetlinkPayload::Overrun(_) => true,
                _ => false,
            };
            if is_concern {
                return Some(());
            }
        }
    }
}

impl Concerns {
    fn include(&self, event: &RouteNetlinkMessage) -> bool {
        let Self { links, tunnels, .. } = self;
        match event {
            RouteNetlinkMessage::DelRoute(route) => message::is_own(route),
            RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) => {
                links.contains(&link.header.index)
            }
            RouteNetlinkMessage::DelNeighbour(entry) => tunnels.contains(&entry.header.ifindex),
            RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
                opens_network(address) || tunnels.contains(&address.header.index)
            }
            _ => false,
        }
    }

    /// Returns whether the route leads to one of the networks.
    fn has_network(&self, route: &RouteMessage) -> bool {
        message::destination(route).is_some_and(|it| self.networks.contains(&it))
    }
}

/// Returns whether the address makes other hosts reachable. The addresses of pods' links on the
/// host do not.
fn opens_network(message: &AddressMessage) -> bool {
    let is_single = matches!(message.header.prefix_len, 32 | 128);
    message.header.scope == AddressScope::Universe && !is_single
}

const GROUPS: [MulticastGroup; 6] = [
    MulticastGroup::Link,
    MulticastGroup::Neigh,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];
