//! Protection of the node's 127.0.0.0/8 against neighbours while `route_localnet` is 1
//! (CVE-2020-8558).
//!
//! portmap sets `route_localnet` if a hostPort is for 127.0.0.1. portmap then protects the node by
//! rules, which `Firewall` reads, and by `IPsec` policies, which this module reads.

use std::collections::BTreeSet;

use netlink::{Packets, Policies};

/// Whether `IPsec` policies protect 127.0.0.0/8, and the links for which portmap set
/// `route_localnet`.
#[derive(Debug, Default)]
pub struct Localnet {
    /// The packets that portmap's `IPsec` policies have to block and no policy blocks: packets to
    /// 127.0.0.0/8, packets from it, or both. Empty if policies block both. `None` if the kernel
    /// does not support `IPsec` policies.
    pub accepted: Option<Vec<Packets>>,
    /// Whether a running cni-agent guards 127.0.0.0/8, so that no policies are needed.
    pub is_guarded: bool,
    /// Whether an attachment needs the policies if no agent guards.
    pub needs_policies: bool,
    /// Indexes of the links for which portmap set `route_localnet`.
    pub links: BTreeSet<u32>,
}

impl Localnet {
    pub(super) fn read() -> anyhow::Result<Self> {
        let policies = Policies::open()?;
        let packets = portmap::localnet_packets();
        let accepted = policies.map(|it| it.accepted(&packets)).transpose()?;
        let links = portmap::localnet_links().into_iter().collect();
        Ok(Self {
            accepted,
            is_guarded: portmap::is_localnet_guarded()?,
            needs_policies: portmap::needs_policies(),
            links,
        })
    }
}
