//! Versions of the Internet Protocol.

use std::net::IpAddr;

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

    /// Returns the length of an address in bytes.
    pub(crate) fn address_len(self) -> usize {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }

    /// `NFPROTO_IPV4` and `NFPROTO_IPV6`
    pub(crate) fn number(self) -> u8 {
        self as u8
    }
}
