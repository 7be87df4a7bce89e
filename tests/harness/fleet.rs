//! Networks of the soak test, in which each pod has a chain of its own.

use serde_json::json;

use crate::{Chain, Host};

/// The plugins of all pods of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fleet {
    /// A typical node: `bridge`, `portmap` and `bandwidth`, with `host-local`.
    Bridge,
    /// podman's default network: `bridge`, `portmap`, `firewall` and `tuning`, with `host-local`.
    Podman,
    /// `ptp` and `portmap`, with an address from `static` for each pod.
    Fixed,
}

impl Fleet {
    /// Returns the name for the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bridge => "chain",
            Self::Podman => "podman",
            Self::Fixed => "ptp and static",
        }
    }

    /// Returns whether `host-local` leases the addresses.
    pub fn leases(self) -> bool {
        self != Self::Fixed
    }

    /// Returns the chain of the pod with this number, which is below 10,000.
    pub fn chain(self, host: &Host, number: u16) -> Chain<'_> {
        let ranges = json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]);
        let leased =
            |plugins: &[&str]| Chain::new(host, plugins).with("bridge", "ipam.ranges", &ranges);
        match self {
            Self::Bridge => leased(&["bridge", "portmap", "bandwidth"]),
            Self::Podman => leased(&["bridge", "portmap", "firewall", "tuning"]),
            Self::Fixed => {
                let [high, low] = (number + 2).to_be_bytes();
                let addresses = json!([
                    {"address": format!("10.1.{high}.{low}/16"), "gateway": "10.1.0.1"},
                    {"address": format!("fd00:1::{:x}/64", number + 2), "gateway": "fd00:1::1"},
                ]);
                let ipam = json!({
                    "type": "static",
                    "addresses": addresses,
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                });
                Chain::new(host, &["ptp", "portmap"]).with("ptp", "ipam", &ipam)
            }
        }
    }
}
