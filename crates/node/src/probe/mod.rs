//! What the node's rules do to new packets, found by sending some through a copy of them.
//!
//! The copy is in a namespace that is made for it: all tables of `nf_tables` and of legacy iptables
//! with links of the same names and numbers, between a namespace in the place of a pod and one in the
//! place of another host. The kernel itself says what becomes of a packet, whatever rules, sets and
//! matches it meets; no packet leaves the node, and nothing on it is changed. Not in the copy are
//! programs of BPF and tc, legacy ebtables, and marks and connections that the node has.

mod legacy;
mod replica;
mod traffic;

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink::Link;
use nft::{RulePlace, Ruleset};

use self::legacy::Saved;
pub use self::traffic::Fate;

/// What was tried for the pods of a bridge and a family.
#[derive(Debug)]
pub struct Probe {
    /// The bridge.
    pub bridge: String,
    /// The family is IPv4.
    pub is_ipv4: bool,
    /// What became of the packets of each path; else why that could not be tried.
    pub fates: Result<Vec<(Path, Fate)>, String>,
}

/// Where a packet is from, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// From a pod to another host, and the answer.
    ToElsewhere(Protocol),
    /// From a pod to a port of the gateway's address.
    ToNode(Protocol, u16),
    /// From the node to a pod: the kubelet's probes.
    FromNode,
    /// From another host to a hostPort, which leads to the pod.
    ToHostPort(u16),
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
}

/// A place in the network for which packets are sent.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The bridge.
    pub bridge: Link,
    /// The uplink.
    pub uplink: Link,
    /// Of bridge and uplink, by their indexes.
    pub addresses: Vec<(u32, IpNetwork)>,
    /// The gateway's address.
    pub gateway: IpAddr,
    /// An address of a pod.
    pub pod: IpNetwork,
    /// A hostPort of TCP, and the pod's port.
    pub host_port: Option<(u16, u16)>,
    /// `bridge-nf-call-iptables` and `bridge-nf-call-ip6tables`, where `br_netfilter` is loaded.
    pub bridge_calls: Vec<(String, String)>,
}

/// All rules of the node, as they are loaded into copies.
#[derive(Debug)]
pub struct Rules {
    ruleset: Ruleset,
    legacy: Vec<Saved>,
}

impl Rules {
    /// Reads them.
    ///
    /// # Errors
    /// They cannot be read, or are too many.
    pub fn read(legacy: &[String]) -> anyhow::Result<Self> {
        let ruleset = nft::Connection::open()?.ruleset()?;
        let size = ruleset.size();
        anyhow::ensure!(size <= LARGEST, "the rules take {} MiB", size >> 20);
        let legacy = legacy::save(legacy)?;
        Ok(Self { ruleset, legacy })
    }

    /// Sends packets through a copy of them.
    pub fn probe(&self, stage: &Stage) -> Probe {
        let fates = replica::run(self, stage).map_err(super::words);
        Probe::new(stage, fates)
    }

    /// The place on the node of a rule of the copy.
    fn place_on_node(&self, copied: &[RulePlace], found: &RulePlace) -> RulePlace {
        let pairs = copied.iter().zip(self.ruleset.rules());
        let mut same = pairs.filter(|(copy, _)| *copy == found);
        same.next().map_or(found, |(_, own)| own).clone()
    }
}

impl Probe {
    /// Nothing could be tried, for this reason.
    pub fn failed(stage: &Stage, reason: String) -> Self {
        Self::new(stage, Err(reason))
    }

    fn new(stage: &Stage, fates: Result<Vec<(Path, Fate)>, String>) -> Self {
        Self {
            bridge: stage.bridge.name.clone(),
            is_ipv4: stage.pod.is_ipv4(),
            fates,
        }
    }
}

/// In bytes: more is not copied.
const LARGEST: usize = 256 << 20;
