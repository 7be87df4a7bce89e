//! What goes over the links of a place, as far as neighbours and routers announce themselves.

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

/// A packet socket that hears every link of one place.
#[derive(Debug)]
pub struct Capture {
    socket: OwnedFd,
    seen: Vec<Frame>,
}

/// An Ethernet frame by which somebody says who he is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Where it is from, as `ip link` prints it.
    pub from: String,
    /// Whom it is for.
    pub to: String,
    /// What it says.
    pub says: Saying,
}

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saying {
    /// ARP, request or reply (RFC 826). Sender and target are the same in a gratuitous one.
    Arp {
        /// Whose MAC it tells.
        sender: Ipv4Addr,
        /// Whom it is about.
        target: Ipv4Addr,
    },
    /// A neighbour advertisement (RFC 4861).
    Neighbour {
        /// Whose MAC it tells.
        target: Ipv6Addr,
        /// It replaces what receivers knew.
        overrides: bool,
    },
    /// A router advertisement (RFC 4861).
    Router,
}

impl Capture {
    /// Listens from now on.
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

    /// Waits for a frame that is as `wanted` says, unless it came already.
    pub fn sees(&mut self, wanted: impl Fn(&Frame) -> bool) -> bool {
        if self.seen.iter().any(&wanted) {
            return true;
        }
        let start = Instant::now();
        let mut buffer = [0; 2048];
        while start.elapsed() < DEADLINE {
            // Nothing within the socket's timeout.
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

    /// A frame from this MAC that tells neighbours, unasked, whose address this is.
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

    /// Every frame so far that was waited through.
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

    /// For everybody, or for a group.
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

/// Without extension headers, of which neither kind of advertisement has any.
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
