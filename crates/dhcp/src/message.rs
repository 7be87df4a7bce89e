//! DHCP messages in Ethernet frames.
//!
//! The daemon sends and receives whole frames: an interface without an address has no other way, and
//! with one, firewall rules of the container cannot block the lease.

use std::net::Ipv4Addr;

use anyhow::Context as _;
use cni::Attachment;
use dhcproto::Encodable as _;
pub(crate) use dhcproto::v4::SERVER_PORT;
use dhcproto::v4::{CLIENT_PORT, DhcpOption, Flags, Message, MessageType, UnknownOption};
use etherparse::PacketBuilder;
use netlink::MacAddress;

use crate::config::Options;
use crate::lease::{BROADCAST_MAC, Lease};
use crate::reply::Reply;
use crate::wire::Asked;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Ask<'l> {
    /// DISCOVER: any address, or the one that the client had before.
    Discover(Option<Ipv4Addr>),
    /// REQUEST of an offered lease.
    Select(&'l Lease),
    /// REQUEST of INIT-REBOOT: is this lease, which another daemon got, still valid?
    Reboot(&'l Lease),
    /// REQUEST to the server of the lease, to extend it (T1).
    Renew(&'l Lease),
    /// REQUEST to all servers, to extend the lease (T2).
    Rebind(&'l Lease),
    Release(&'l Lease),
}

/// The client in the server's eyes.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// The attachment and its options.
    pub asked: Asked,
    /// The interface's MAC.
    pub mac: MacAddress,
    /// Whether the server shall send its answers to all hosts.
    pub broadcast: bool,
}

impl Client {
    /// Returns the client identifier (option 61): type 0 and `CONTAINER/NETWORK/INTERFACE`, of which
    /// the Go plugin takes 254 bytes, too. So a server knows the client again after a change of
    /// daemons.
    fn id(&self) -> Vec<u8> {
        let Attachment {
            network,
            container,
            interface,
        } = &self.asked.attachment;
        let name = format!("\0{container}/{network}/{interface}");
        name.bytes().take(255).collect()
    }

    /// Returns the frame that sends `ask` with the transaction number `number`.
    pub(crate) fn frame(&self, ask: Ask<'_>, number: u32) -> anyhow::Result<Vec<u8>> {
        let payload = self.payload(ask, number)?;
        let (mac, from, to) = ask.path();
        let packet = PacketBuilder::ethernet2(self.mac.0, mac)
            .ipv4(from.octets(), to.octets(), TIME_TO_LIVE)
            .udp(CLIENT_PORT, SERVER_PORT);
        let mut frame = Vec::with_capacity(packet.size(payload.len()));
        packet
            .write(&mut frame, &payload)
            .context("write a frame")?;
        Ok(frame)
    }

    /// Returns the content of the UDP packet for `ask`.
    pub(crate) fn payload(&self, ask: Ask<'_>, number: u32) -> anyhow::Result<Vec<u8>> {
        let payload = self.message(ask, number).to_vec();
        let mut payload = payload.context("encode a DHCP message")?;
        // BOOTP messages have at least 300 bytes (RFC 1542), and some servers drop shorter ones.
        payload.resize(payload.len().max(SHORTEST), 0);
        Ok(payload)
    }

    /// Returns a message with the fields that table 5 of RFC 2131 demands.
    fn message(&self, ask: Ask<'_>, number: u32) -> Message {
        let mut message = Message::default();
        message.set_xid(number).set_chaddr(&self.mac.0);
        let Options {
            requested,
            provided,
        } = &self.asked.options;
        let mut insert = |option| drop(message.opts_mut().insert(option));
        insert(raw(CLIENT_ID, self.id()));
        if !matches!(ask, Ask::Release(_)) {
            insert(DhcpOption::MaxMessageSize(LARGEST));
            if !requested.is_empty() {
                insert(raw(REQUESTED, requested.clone()));
            }
        }
        for (code, value) in provided {
            insert(raw(*code, value.clone()));
        }
        insert(DhcpOption::MessageType(ask.kind().0));
        match ask {
            Ask::Discover(Some(address)) => insert(DhcpOption::RequestedIpAddress(address)),
            Ask::Select(lease) => {
                insert(DhcpOption::RequestedIpAddress(lease.address.ip()));
                insert(DhcpOption::ServerIdentifier(lease.server));
            }
            Ask::Reboot(lease) => insert(DhcpOption::RequestedIpAddress(lease.address.ip())),
            Ask::Release(lease) => insert(DhcpOption::ServerIdentifier(lease.server)),
            Ask::Discover(None) | Ask::Renew(_) | Ask::Rebind(_) => {}
        }
        if let Ask::Renew(lease) | Ask::Rebind(lease) | Ask::Release(lease) = ask {
            message.set_ciaddr(lease.address.ip());
        } else if self.broadcast {
            message.set_flags(Flags::default().set_broadcast());
        }
        message
    }
}

impl Ask<'_> {
    /// Returns the type of the message, and its name.
    pub(crate) fn kind(self) -> (MessageType, &'static str) {
        match self {
            Self::Discover(_) => (MessageType::Discover, "DHCPDISCOVER"),
            Self::Release(_) => (MessageType::Release, "DHCPRELEASE"),
            _ => (MessageType::Request, "DHCPREQUEST"),
        }
    }

    /// Returns the MAC of the receiver, the sender's address and the receiver's address.
    fn path(self) -> ([u8; 6], Ipv4Addr, Ipv4Addr) {
        match self {
            Self::Renew(lease) | Self::Release(lease) => {
                (lease.server_mac, lease.address.ip(), lease.server)
            }
            Self::Rebind(lease) => (BROADCAST_MAC, lease.address.ip(), Ipv4Addr::BROADCAST),
            _ => (BROADCAST_MAC, Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST),
        }
    }

    /// Returns whether `reply` may answer this question: it is of the right kind and from the right
    /// server.
    pub(crate) fn is_answered_by(self, reply: &Reply<'_>) -> bool {
        let kind = reply.kind();
        let is_offer = kind == Some(MessageType::Offer);
        let is_decision = matches!(kind, Some(MessageType::Ack | MessageType::Nak));
        match self {
            Self::Discover(_) => is_offer,
            Self::Select(lease) | Self::Renew(lease) => {
                is_decision && reply.server() == Some(lease.server)
            }
            Self::Reboot(_) | Self::Rebind(_) => is_decision,
            Self::Release(_) => false,
        }
    }
}

fn raw(code: u8, value: Vec<u8>) -> DhcpOption {
    DhcpOption::Unknown(UnknownOption::new(code.into(), value))
}

const CLIENT_ID: u8 = 61;

/// The list of requested options.
const REQUESTED: u8 = 55;

/// Size of the largest message that the client accepts in bytes, as in the Go plugin.
const LARGEST: u16 = 1500;
const SHORTEST: usize = 300;
const TIME_TO_LIVE: u8 = 64;
