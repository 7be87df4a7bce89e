//! The VXLAN devices of a node, one for each family.

use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::IpNetwork;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::node::Node;

/// The values that all nodes of a cluster have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Vxlan {
    /// The VXLAN network identifier, 1–16777215.
    pub vni: u32,
    /// The UDP port at which nodes receive packets.
    pub port: u16,
}

/// A desired VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// Name of the device.
    pub name: &'static str,
    /// The values of the cluster.
    pub vxlan: Vxlan,
    /// Address of this node, from which tunnelled packets come.
    pub local: IpAddr,
    /// MAC address, by which the other nodes reach the device.
    pub mac: Mac,
    /// Address of the device, the source of the node's own packets to pods: the first one of the
    /// node's pod CIDR, which no pod gets.
    pub address: IpAddr,
}

/// A MAC address.
pub type Mac = [u8; 6];

/// The names of the devices, for IPv4 and for IPv6.
pub const NAMES: [&str; 2] = ["cni-vxlan4", "cni-vxlan6"];

impl Tunnel {
    /// Returns the devices of a node: one for each family of which it has a pod CIDR and an address.
    pub fn of(name: &str, node: &Node, vxlan: Vxlan) -> Vec<Self> {
        let tunnels = [true, false].into_iter().zip(NAMES);
        let tunnels = tunnels.filter_map(|(is_ipv4, device)| {
            let mut networks = node.pod_cidrs.iter();
            let network = networks.find(|it| it.is_ipv4() == is_ipv4)?;
            Some(Self {
                name: device,
                vxlan,
                local: node.address_for(*network)?,
                mac: mac(name),
                address: network.network(),
            })
        });
        tunnels.collect()
    }

    /// Returns how many bytes of the link's MTU the tunnel needs: the headers of the outer IP, UDP,
    /// VXLAN, and of the inner Ethernet frame.
    pub fn overhead(&self) -> u32 {
        let ip = if self.local.is_ipv4() { 20 } else { 40 };
        ip + 8 + 8 + 14
    }

    /// Returns the gateway to the pods of the node with this MAC in `network`. That of IPv6 is
    /// link-local, because the kernel refuses another one to which a route without the tunnel leads.
    pub(crate) fn gateway(network: IpNetwork, mac: Mac) -> IpAddr {
        let [first, second, third, fourth, fifth, sixth] = mac.map(u16::from);
        match network {
            IpNetwork::V4(network) => network.network().into(),
            IpNetwork::V6(_) => {
                let [high, middle, low] =
                    [first << 8 | second, third << 8 | fourth, fifth << 8 | sixth];
                Ipv6Addr::new(0xfe80, 0, 0, 0, 0, high, middle, low).into()
            }
        }
    }

    /// Returns whether the tunnel carries packets to the network.
    pub(crate) fn carries(&self, network: IpNetwork) -> bool {
        self.address.is_ipv4() == network.is_ipv4()
    }
}

/// Returns the MAC address of the VXLAN devices of the node `name`. It is locally administered.
pub fn mac(name: &str) -> Mac {
    let hash: [u8; 32] = Sha256::digest(name).into();
    let [first, second, third, fourth, fifth, sixth, ..] = hash;
    [first & 0xfc | 0x02, second, third, fourth, fifth, sixth]
}

impl Default for Vxlan {
    /// Returns the port that IANA assigned to VXLAN. flannel and Cilium use 8472, Docker's overlay
    /// networks have identifiers from 4096 on.
    fn default() -> Self {
        Self {
            vni: 201,
            port: 4789,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_families_of_both_cidrs_and_addresses() {
        let node = |cidrs: &[&str], addresses: &[&str]| Node {
            pod_cidrs: cidrs.iter().map(|it| it.parse().unwrap()).collect(),
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            key: None,
            invalid: Vec::new(),
        };
        let both = node(
            &["10.244.1.0/24", "fd00:1::/64"],
            &["192.0.2.1", "2001:db8::1"],
        );
        let tunnels = Tunnel::of("node-1", &both, Vxlan::default());
        let described = tunnels
            .iter()
            .map(|it| format!("{} {} {} {}", it.name, it.local, it.address, it.overhead()));
        assert_eq!(
            described.collect::<Vec<_>>(),
            [
                "cni-vxlan4 192.0.2.1 10.244.1.0 50",
                "cni-vxlan6 2001:db8::1 fd00:1:: 70"
            ]
        );
        let one = node(&["10.244.1.0/24", "fd00:1::/64"], &["192.0.2.1"]);
        assert_eq!(Tunnel::of("node-1", &one, Vxlan::default()).len(), 1);
    }

    /// All nodes have to compute the same address, also those with another version of the agent.
    #[test]
    fn mac_depends_on_the_name_alone() {
        assert_eq!(mac("node-1"), mac("node-1"));
        assert_ne!(mac("node-1"), mac("node-2"));
        assert_eq!(mac("node-1")[0] & 0x03, 0x02);
    }
}
