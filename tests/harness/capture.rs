//! Captures announcements of neighbours and routers on the links of a place.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Instant;

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use crate::DEADLINE;
use crate::place::Place;

/// A packet socket for all links of one place.
#[derive(Debug)]
pub struct Capture {
    socket: OwnedFd,
    seen: Vec<Frame>,
}

/// An Ethernet frame with an announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Source MAC, as `ip link` prints it.
    pub from: String,
    /// Destination MAC.
    pub to: String,
    /// Content.
    pub says: Saying,
}

/// Content of an announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saying {
    /// ARP, request or reply (RFC 826). A gratuitous one has the same sender and target.
    Arp {
        /// Address whose MAC it announces.
        sender: Ipv4Addr,
        /// Address that it asks for.
        target: Ipv4Addr,
    },
    /// A neighbour advertisement (RFC 4861).
    Neighbour {
        /// Address whose MAC it announces.
        target: Ipv6Addr,
        /// Override flag: receivers replace their entry.
        overrides: bool,
    },
    /// A router advertisement (RFC 4861).
    Router,
}

impl Capture {
    /// Starts to listen.
    pub fn start(place: &impl Place) -> Self {
        let open = || {
            let (family, raw) = (AddressFamily::Packet, SockType::Raw);
            socket(family, raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
        };
        let socket = place.enter(open).unwrap();
        setsockopt(&socket, ReceiveTimeout, &TimeVal::milliseconds(100)).unwrap();
        Self {
            socket,
            seen: Vec::new(),
        }
    }

    /// Waits for a frame that satisfies `wanted`; frames received before count, too.
    pub fn sees(&mut self, wanted: impl Fn(&Frame) -> bool) -> bool {
        if self.seen.iter().any(&wanted) {
            return true;
        }
        let start = Instant::now();
        let mut buffer = [0; 2048];
        while start.elapsed() < DEADLINE {
            // The socket's time-out has expired.
            let Ok(length) = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) else {
                continue;
            };
            let Some(frame) = Frame::parse(&buffer[..length]) else {
                continue;
            };
            self.seen.push(frame);
            if self.seen.last().is_some_and(&wanted) {
                return true;
            }
        }
        false
    }

    /// Waits for an unsolicited announcement of this address from this MAC.
    pub fn sees_announcement(&mut self, mac: &str, address: &str) -> bool {
        let address: IpAddr = address.parse().unwrap();
        self.sees(|frame| {
            let is_it = match (frame.says, address) {
                (Saying::Arp { sender, target }, IpAddr::V4(ip)) => sender == ip && target == ip,
                (Saying::Neighbour { target, overrides }, IpAddr::V6(ip)) => {
                    target == ip && overrides
                }
                _ => false,
            };
            is_it && frame.from == mac && frame.is_multicast()
        })
    }

    /// Returns all frames received so far.
    pub fn seen(&self) -> &[Frame] {
        &self.seen
    }
}

impl Frame {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, payload) = bytes.split_at_checked(14)?;
        let says = match header[12..] {
            [0x08, 0x06] => arp(payload)?,
            [0x86, 0xdd] => icmpv6(payload)?,
            _ => return None,
        };
        Some(Self {
            from: mac(&header[6..12]),
            to: mac(&header[..6]),
            says,
        })
    }

    /// Returns whether the frame is for all stations or for a group.
    fn is_multicast(&self) -> bool {
        self.to == "ff:ff:ff:ff:ff:ff" || self.to.starts_with("33:33:")
    }
}

fn arp(payload: &[u8]) -> Option<Saying> {
    let address = |at: usize| {
        payload
            .get(at..)?
            .first_chunk::<4>()
            .map(|it| Ipv4Addr::from(*it))
    };
    Some(Saying::Arp {
        sender: address(14)?,
        target: address(24)?,
    })
}

/// Parses `ICMPv6` without extension headers, which advertisements never have.
fn icmpv6(payload: &[u8]) -> Option<Saying> {
    const ICMPV6: u8 = 58;
    const OVERRIDE: u8 = 0x20;
    if *payload.get(6)? != ICMPV6 {
        return None;
    }
    let message = payload.get(40..)?;
    match *message.first()? {
        134 => Some(Saying::Router),
        136 => Some(Saying::Neighbour {
            target: Ipv6Addr::from(*message.get(8..)?.first_chunk::<16>()?),
            overrides: message.get(4)? & OVERRIDE != 0,
        }),
        _ => None,
    }
}

fn mac(bytes: &[u8]) -> String {
    let parts: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}
