//! The part of a link's traffic that a limit applies to.

use ipnetwork::IpNetwork;
use netlink::Connection;
use netns::Netns;

/// Traffic of a container, selected by the subnets of its peers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Traffic {
    /// All traffic.
    #[default]
    All,
    /// Traffic with peers in these subnets.
    Only(Vec<IpNetwork>),
    /// Traffic with all peers outside these subnets.
    AllBut(Vec<IpNetwork>),
}

/// Whether a limit applies to packets that match a subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// The packets are limited.
    Limited,
    /// The packets are not limited.
    Unlimited,
}

/// The end of a veth pair at which packets leave into the pair and are limited.
#[derive(Debug, Clone, Copy)]
pub enum End<'a> {
    /// The host's end: the packets come from the container's peers.
    Host,
    /// The container's end, in this namespace: the packets go to the container's peers.
    Container(&'a Netns),
}

impl End<'_> {
    /// Opens a connection to the namespace of this end. The host's end is in the namespace of the
    /// calling thread.
    ///
    /// # Errors
    /// [`netlink::Error::Open`] and [`netlink::Error::Namespace`].
    pub fn connect(self) -> Result<Connection, netlink::Error> {
        match self {
            Self::Host => Connection::open(),
            // A pod may lengthen lists in its namespace.
            Self::Container(namespace) => namespace.run(Connection::open_wary)?,
        }
    }
}

impl Traffic {
    /// Returns the subnets with which a limit compares the peers' addresses. The first matching
    /// subnet decides whether the limit applies. Packets that are not IP match no subnet. For the
    /// filters of this crate, packets with a VLAN tag match no subnet, either.
    pub fn cases(&self) -> Vec<(IpNetwork, Case)> {
        let (subnets, case) = match self {
            Self::All => return Vec::new(),
            Self::AllBut(subnets) => (subnets, Case::Unlimited),
            Self::Only(subnets) => (subnets, Case::Limited),
        };
        let rest = ["0.0.0.0/0", "::/0"].into_iter();
        let rest = rest.filter_map(|it| it.parse().ok().filter(|_| case == Case::Limited));
        let subnets = subnets.iter().map(|it| (*it, case));
        subnets
            .chain(rest.map(|it| (it, Case::Unlimited)))
            .collect()
    }
}
