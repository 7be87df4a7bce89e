//! Captures the IP packets on the links of a place.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::sockopt::RcvBufForce;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket,
};

use crate::place::Place;

/// A packet socket for all links of one place.
#[derive(Debug)]
pub struct Packets(OwnedFd);

/// An IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port, if it is a UDP packet.
    pub udp_port: Option<u16>,
}

impl Packets {
    /// Starts to listen.
    pub fn start(place: &impl Place) -> Self {
        let open = || {
            let (family, raw) = (AddressFamily::Packet, SockType::Raw);
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            socket(family, raw, flags, SockProtocol::EthAll)
        };
        let socket = place.enter(open).unwrap();
        setsockopt(&socket, RcvBufForce, &(64 << 20)).ok();
        Self(socket)
    }

    /// Returns the packets since the last call.
    pub fn seen(&self) -> Vec<Packet> {
        let mut buffer = [0; 2048];
        let mut seen = Vec::new();
        while let Ok(length) = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            seen.extend(Packet::parse(&buffer[..length]));
        }
        seen
    }
}

impl Packet {
    fn parse(frame: &[u8]) -> Option<Self> {
        let (header, packet) = frame.split_at_checked(14)?;
        match header[12..] {
            [0x08, 0x00] => {
                let address = |at: usize| packet.get(at..)?.first_chunk::<4>().copied();
                let length = usize::from(packet.first()? & 0x0f) * 4;
                Some(Self {
                    source: Ipv4Addr::from(address(12)?).into(),
                    destination: Ipv4Addr::from(address(16)?).into(),
                    udp_port: udp_port(*packet.get(9)?, packet.get(length..)?),
                })
            }
            [0x86, 0xdd] => {
                let address = |at: usize| packet.get(at..)?.first_chunk::<16>().copied();
                Some(Self {
                    source: Ipv6Addr::from(address(8)?).into(),
                    destination: Ipv6Addr::from(address(24)?).into(),
                    udp_port: udp_port(*packet.get(6)?, packet.get(40..)?),
                })
            }
            _ => None,
        }
    }
}

fn udp_port(protocol: u8, payload: &[u8]) -> Option<u16> {
    let port = payload.get(2..4)?.try_into().ok()?;
    (protocol == 17).then_some(u16::from_be_bytes(port))
}
