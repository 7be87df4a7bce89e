//! Ports of a host, and the transport protocols that have ports.

use std::fmt;
use std::net::IpAddr;

use netlink::IpVersion;
use serde::Serialize;

/// A port of a host, for one IP version: the destination of a connection's first packet, before any
/// translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// IP version of the packets.
    pub version: IpVersion,
    /// The host's address; `None` for all addresses of the host.
    pub address: Option<IpAddr>,
    /// Number of the transport protocol (IANA).
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

/// A transport protocol with ports, with its number in a packet (IANA, "Assigned Internet Protocol
/// Numbers"). It is printed as nft(8) does: `tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, derive_more::Display)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// SCTP.
    Sctp = 132,
}

impl HostPort {
    /// Returns the protocol and the port without the address, as in `tcp port 8080`.
    pub fn name(self) -> String {
        match Protocol::of_number(self.protocol) {
            Some(protocol) => format!("{protocol} port {}", self.port),
            None => format!("port {} of protocol {}", self.port, self.protocol),
        }
    }

    /// Returns whether the port's protocol is connectionless, as only UDP is. A client of such a
    /// protocol does not notice that its destination is gone, and continues to send. The kernel
    /// keeps the conntrack entry as long as the client sends, so a stale translation would stay in
    /// use.
    pub fn is_connectionless(self) -> bool {
        self.protocol == Protocol::Udp.number()
    }

    /// Returns the same port, for all addresses of the host instead of one.
    pub fn of_every_address(self) -> Self {
        Self {
            address: None,
            ..self
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match self.address {
            Some(address) => write!(f, " of {address}"),
            None => write!(f, " of every {} address", self.version),
        }
    }
}

impl Protocol {
    /// Returns the protocol's number in a packet.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the protocol with this number; `None` if it is not TCP, UDP or SCTP.
    pub fn of_number(number: u8) -> Option<Self> {
        let mut all = [Self::Tcp, Self::Udp, Self::Sctp].into_iter();
        all.find(|it| it.number() == number)
    }
}
