//! Outcomes of new packets under the node's rules, found by sending packets through a copy of the rules.
//!
//! The copy is a temporary namespace with all tables of `nf_tables` and of legacy iptables, and with links of the same
//! names and indexes. It is between a namespace for a pod and a namespace for another host. The kernel itself decides
//! about each packet, so all kinds of rules, sets and matches count. No packet leaves the node, and the node does not
//! change. The copy lacks BPF and tc programs, legacy ebtables, and the node's marks and connections.

mod legacy;
mod replica;
mod traffic;

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink::Link;
use nft::{RulePlace, Ruleset};

use self::legacy::Saved;
pub use self::traffic::Fate;

/// Outcomes for the pods of a bridge and a family.
#[derive(Debug)]
pub struct Probe {
    /// The bridge.
    pub bridge: String,
    /// The family is IPv4.
    pub is_ipv4: bool,
    /// The outcome of each path, or why the trial failed.
    pub fates: Result<Vec<(Path, Fate)>, String>,
}

/// Source and destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// From a pod to another host, and the answer.
    ToElsewhere(Protocol),
    /// From a pod to a port of the gateway's address.
    ToNode(Protocol, u16),
    /// From the node to a pod, as the kubelet's probes.
    FromNode,
    /// From another host to a hostPort of the pod.
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

/// The links and addresses of a trial.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The bridge.
    pub bridge: Link,
    /// The uplink.
    pub uplink: Link,
    /// Addresses of bridge and uplink, by the index of the link.
    pub addresses: Vec<(u32, IpNetwork)>,
    /// The gateway's address.
    pub gateway: IpAddr,
    /// An address of a pod.
    pub pod: IpNetwork,
    /// A TCP hostPort, and the pod's port.
    pub host_port: Option<(u16, u16)>,
    /// `bridge-nf-call-iptables` and `bridge-nf-call-ip6tables` with their values, if `br_netfilter` is loaded.
    pub bridge_calls: Vec<(String, String)>,
}

/// All rules of the node.
#[derive(Debug)]
pub struct Rules {
    ruleset: Ruleset,
    legacy: Vec<Saved>,
}

impl Rules {
    /// Reads the rules.
    ///
    /// # Errors
    /// The rules cannot be read, or take more than 256 MiB.
    pub fn read(legacy: &[String]) -> anyhow::Result<Self> {
        let ruleset = nft::Connection::open()?.ruleset()?;
        let size = ruleset.size();
        anyhow::ensure!(size <= LARGEST, "the rules take {} MiB", size >> 20);
        let legacy = legacy::save(legacy)?;
        Ok(Self { ruleset, legacy })
    }

    /// Sends packets through a copy of the rules.
    pub fn probe(&self, stage: &Stage) -> Probe {
        let fates = replica::run(self, stage).map_err(super::message);
        Probe::new(stage, fates)
    }

    /// Returns the node's place of a rule of the copy.
    fn place_on_node(&self, copied: &[RulePlace], found: &RulePlace) -> RulePlace {
        let pairs = copied.iter().zip(self.ruleset.rules());
        let mut same = pairs.filter(|(copy, _)| *copy == found);
        same.next().map_or(found, |(_, own)| own).clone()
    }
}

impl Probe {
    /// Returns the outcome of a trial that failed for this reason.
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

/// Size limit of the rules, in bytes.
const LARGEST: usize = 256 << 20;
