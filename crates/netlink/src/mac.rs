//! Ethernet addresses (MACs).

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Returns whether an interface can have this address: it is neither a group address nor all
    /// zeros.
    pub fn is_unicast(self) -> bool {
        let [first, ..] = self.0;
        first & 1 == 0 && self.0 != [0; 6]
    }

    /// Returns the link-local IPv6 address of a link with this MAC (RFC 4291, appendix A).
    pub fn link_local(self) -> Ipv6Addr {
        let [v1, v2, v3, d1, d2, d3] = self.0;
        let interface_id = [v1 ^ UNIVERSAL, v2, v3, 0xff, 0xfe, d1, d2, d3];
        Ipv6Addr::from(LINK_LOCAL | u128::from(u64::from_be_bytes(interface_id)))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.0.map(|byte| format!("{byte:02x}"));
        f.write_str(&pairs.join(":"))
    }
}

impl FromStr for MacAddress {
    type Err = InvalidMac;

    /// Parses twelve hexadecimal digits: pairs separated by colons or hyphens, or three groups of
    /// four separated by dots.
    fn from_str(text: &str) -> Result<Self, InvalidMac> {
        let digits = text.replace([':', '-', '.'], "");
        let number = u64::from_str_radix(&digits, 16).map_err(|_| InvalidMac)?;
        let [_, _, bytes @ ..] = number.to_be_bytes();
        let colons = Self(bytes).to_string();
        let hyphens = colons.replace(':', "-");
        let (pairs, _) = bytes.as_chunks();
        let groups = pairs.iter().map(|[a, b]| format!("{a:02x}{b:02x}"));
        let dots = groups.collect::<Vec<_>>().join(".");
        let is_spelled = [colons, hyphens, dots].contains(&text.to_ascii_lowercase());
        is_spelled.then_some(Self(bytes)).ok_or(InvalidMac)
    }
}

/// Prefix of link-local addresses: `fe80::/64`.
const LINK_LOCAL: u128 = 0xfe80 << 112;

/// Bit of a MAC's first byte that is 1 in a locally administered MAC. A link-local IPv6 address
/// contains this bit inverted.
const UNIVERSAL: u8 = 2;

/// The text is not an Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no MAC address of the form 0a:58:0a:01:00:02")]
pub struct InvalidMac;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed() {
        for text in ["0a:58:0a:01:00:ff", "0A-58-0A-01-00-FF", "0a58.0A01.00ff"] {
            let mac: MacAddress = text.parse().unwrap();
            assert_eq!(mac.to_string(), "0a:58:0a:01:00:ff");
        }
    }

    #[test]
    fn link_local_address_follows_from_the_mac() {
        let mac = MacAddress([0x0a, 0x58, 10, 88, 0, 2]);
        assert_eq!(mac.link_local().to_string(), "fe80::858:aff:fe58:2");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "0a:58:0a:01:00",
            "0a:58:0a:01:00:02:03",
            "0a:58:0a:01:00:+2",
            "a:5:0:1:0:2",
            "0a:58-0a:01-00:02",
            "0a58.0a01",
            "0a58.0a01.0002.0003",
            "0a5.80a01.0002",
            "0a58:0a01:0002",
            "0a58.0a01-0002",
            "0a.58.0a.01.00.02",
            "0a580a010002",
        ] {
            assert_eq!(text.parse::<MacAddress>(), Err(InvalidMac), "{text}");
        }
    }

    #[test]
    fn group_addresses_and_zero_are_not_unicast() {
        assert!(MacAddress([2, 0, 0, 0, 0, 0]).is_unicast());
        assert!(!MacAddress([1, 0, 0, 0, 0, 0]).is_unicast());
        assert!(!MacAddress([0; 6]).is_unicast());
    }
}
