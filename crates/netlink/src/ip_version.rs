//! Versions of the Internet Protocol.

use std::net::IpAddr;

use netlink_packet_route::AddressFamily;

/// A version of the Internet Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpVersion {
    /// IPv4
    V4 = 2,
    /// IPv6
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
