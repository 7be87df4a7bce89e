//! What routes need to know of the cluster's nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::key::PublicKey;

/// The nodes of a cluster, by name.
pub type Nodes = BTreeMap<String, Node>;

/// A node of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// The networks that the cluster assigned to the node's pods, `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNetwork>,
    /// The addresses at which the other nodes reach this one, `status.addresses` of the type
    /// `InternalIP`.
    pub addresses: Vec<IpAddr>,
    /// The WireGuard key that the node has announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// Texts in place of networks and addresses that cannot be parsed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<String>,
}

impl Node {
    /// Returns the address at which other nodes reach pods of the network's family: the first one
    /// of this family.
    pub fn address_for(&self, network: IpNetwork) -> Option<IpAddr> {
        let mut addresses = self.addresses.iter().copied();
        addresses.find(|it| it.is_ipv4() == network.is_ipv4())
    }

    /// Returns the address from which encrypted packets of both families come: the first IPv4 address,
    /// otherwise the first one.
    pub fn underlay(&self) -> Option<IpAddr> {
        let mut addresses = self.addresses.iter();
        let first = addresses.clone().next();
        addresses.find(|it| it.is_ipv4()).or(first).copied()
    }
}
