//! What keeps neighbours off 127.0.0.0/8 of the node where `route_localnet` is 1 (CVE-2020-8558).
//!
//! portmap sets that for hostPorts of 127.0.0.1, and guards the node by rules, which `Firewall` knows, and policies.

use std::collections::BTreeSet;

use netlink::{Packets, Policies};

/// What portmap keeps outside of `nf_tables`.
#[derive(Debug, Default)]
pub struct Localnet {
    /// Packets that no policy of `IPsec` blocks; `None` where the kernel has no such policies.
    pub accepted: Option<Vec<Packets>>,
    /// Indexes of the links for which portmap set `route_localnet`.
    pub links: BTreeSet<u32>,
}

impl Localnet {
    pub(super) fn read() -> Result<Self, netlink::Error> {
        let policies = Policies::open()?;
        let packets = portmap::localnet_packets();
        let accepted = policies.map(|it| it.accepted(&packets)).transpose()?;
        let links = portmap::localnet_links().into_iter().collect();
        Ok(Self { accepted, links })
    }
}
