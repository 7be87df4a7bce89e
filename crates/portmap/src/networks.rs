//! IP networks that rules and checks of the plugin use: 127.0.0.0/8, the link-local networks, and
//! all addresses.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

/// 127.0.0.0/8, the addresses of the host's loopback interface.
pub(crate) const LOCALNET: IpNetwork =
    IpNetwork::V4(Ipv4Network::new_checked(Ipv4Addr::new(127, 0, 0, 0), 8).unwrap());

/// The link-local addresses: 169.254.0.0/16 and `fe80::/10`.
pub(crate) const LINK_LOCAL: [IpNetwork; 2] = [
    IpNetwork::V4(Ipv4Network::new_checked(Ipv4Addr::new(169, 254, 0, 0), 16).unwrap()),
    IpNetwork::V6(Ipv6Network::new_checked(Ipv6Addr::from_bits(0xfe80 << 112), 10).unwrap()),
];

pub(crate) const EVERYWHERE: [IpNetwork; 2] = [
    IpNetwork::V4(Ipv4Network::new_checked(Ipv4Addr::UNSPECIFIED, 0).unwrap()),
    IpNetwork::V6(Ipv6Network::new_checked(Ipv6Addr::UNSPECIFIED, 0).unwrap()),
];
