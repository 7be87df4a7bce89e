//! Reads the neighbours of links.

use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use nix::libc::{RTM_GETNEIGH, RTM_NEWNEIGH};

use crate::message::values;
use crate::{Connection, Error, MacAddress, Message, Request};

/// A host on the network of a link, whose MAC the kernel knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the link.
    pub link: u32,
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// Whether an operator made the entry (`nud permanent`). The kernel makes all other entries, and
    /// any host on the network can cause that: it sends an ARP request, or a neighbour solicitation,
    /// with the address as its source.
    pub is_permanent: bool,
}

/// An entry of a VXLAN device: where it sends frames to a MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarding {
    /// Index of the link.
    pub link: u32,
    /// The MAC address.
    pub mac: MacAddress,
    /// Address of the host to which the device sends the frames.
    pub to: IpAddr,
}

impl Connection {
    /// Returns the entries of all VXLAN devices for single hosts. Equivalent to `bridge fdb show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn forwarding(&self) -> Result<Vec<Forwarding>, Error> {
        let mut every = NeighbourMessage::default();
        every.header.family = AddressFamily::Bridge;
        let request = Request::list("read forwarding entries", RTM_GETNEIGH, &every);
        self.objects(&[request], Forwarding::from_answer)
    }

    /// Returns the neighbours of all links. Leaves out addresses that did not answer, or have not
    /// answered yet (`FAILED`, `INCOMPLETE`), and those that need no answer (`NOARP`). Equivalent
    /// to `ip neighbour show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn neighbours(&self) -> Result<Vec<Neighbour>, Error> {
        let every = NeighbourMessage::default();
        let request = Request::list("read neighbours", RTM_GETNEIGH, &every);
        self.objects(&[request], Neighbour::from_answer)
    }
}

impl Neighbour {
    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        let message: NeighbourMessage = answer.read(RTM_NEWNEIGH)?;
        let state = message.header.state;
        let is_known = matches!(
            state,
            NeighbourState::Reachable
                | NeighbourState::Stale
                | NeighbourState::Delay
                | NeighbourState::Probe
                | NeighbourState::Permanent
        );
        let address = message.attributes.iter().find_map(address);
        Some(Self {
            link: message.header.ifindex,
            address: address.filter(|_| is_known)?,
            is_permanent: state == NeighbourState::Permanent,
        })
    }
}

impl Forwarding {
    fn from_answer(answer: &Message) -> Option<Self> {
        let message: NeighbourMessage = answer.read(RTM_NEWNEIGH)?;
        let mut macs = values!(&message.attributes, NeighbourAttribute::LinkLayerAddress);
        Some(Self {
            link: message.header.ifindex,
            mac: MacAddress(macs.find_map(|it| it.as_slice().try_into().ok())?),
            to: message.attributes.iter().find_map(address)?,
        })
    }
}

fn address(attribute: &NeighbourAttribute) -> Option<IpAddr> {
    match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(it)) => Some((*it).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(it)) => Some((*it).into()),
        // In an entry of a VXLAN device, whose own family is that of bridges.
        NeighbourAttribute::Destination(NeighbourAddress::Other(octets)) => {
            let v4 = <[u8; 4]>::try_from(octets.as_slice()).map(IpAddr::from);
            let v6 = || <[u8; 16]>::try_from(octets.as_slice()).map(IpAddr::from);
            v4.or_else(|_| v6()).ok()
        }
        _ => None,
    }
}
