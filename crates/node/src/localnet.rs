//! What keeps neighbours off 127.0.0.0/8 of the node where `route_localnet` is 1 (CVE-2020-8558).
//!
//! portmap sets that for hostPorts of 127.0.0.1, and guards the node by rules, which `Firewall` knows, and policies.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;

use ipnetwork::IpNetwork;
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
        let accepted = policies.map(|it| it.accepted(&foreign())).transpose()?;
        let entries = fs::read_dir(USERS).into_iter().flatten().flatten();
        let names = entries.filter_map(|it| it.file_name().into_string().ok());
        let links = names.filter_map(|it| it.parse().ok()).collect();
        Ok(Self { accepted, links })
    }
}

/// What only `lo` may deliver.
fn foreign() -> Vec<Packets> {
    let localnet = IpNetwork::new(Ipv4Addr::new(127, 0, 0, 0).into(), 8);
    let packets = localnet.map(|it| [Packets::To(it), Packets::From(it)]);
    packets.into_iter().flatten().collect()
}

/// Of portmap: a directory for each link, by index.
const USERS: &str = "/run/cni/localnet";
