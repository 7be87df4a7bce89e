//! Versions of the Internet Protocol.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_route::AddressFamily;

/// A version of the Internet Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub enum IpVersion {
    /// IPv4
    #[display("IPv4")]
    V4 = 2,
    /// IPv6
    #[display("IPv6")]
    V6 = 10,
}

impl IpVersion {
    /// Both versions.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the IP version of `address`.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Returns the number of the address family, `AF_INET` or `AF_INET6`. Netfilter uses the same
    /// numbers (`NFPROTO_IPV4`, `NFPROTO_IPV6`).
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the network of all addresses, `0.0.0.0/0` or `::/0`.
    pub fn every_address(self) -> IpNetwork {
        let unspecified = match self {
            Self::V4 => IpAddr::from([0; 4]),
            Self::V6 => IpAddr::from([0; 16]),
        };
        IpNetwork::new(unspecified, 0).unwrap_or(unspecified.into())
    }
}

/// Returns the network of an address with a prefix length, such as `10.1.0.0/16` of `10.1.0.2/16`.
pub fn network_of(address: IpNetwork) -> IpNetwork {
    IpNetwork::new(address.network(), address.prefix()).unwrap_or(address)
}

/// Returns the 4 or 16 bytes of an address, in network byte order.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

impl From<IpVersion> for AddressFamily {
    fn from(version: IpVersion) -> Self {
        version.number().into()
    }
}
