//! Networks of bridge in VLANs.

use serde_json::json;

use crate::{Host, Network};

/// Returns the network `pods` in VLAN 100, with its gateway.
pub fn access(host: &Host) -> Network<'_> {
    host.bridge().with("vlan", 100)
}

/// Returns the network `other` with a gateway and a subnet of its own.
pub fn other(host: &Host, vlan: u16) -> Network<'_> {
    let ranges = json!([[{"subnet": "10.2.0.0/24"}]]);
    let network = host.bridge_v4().with("ipam.ranges", ranges);
    network.with("name", "other").with("vlan", vlan)
}
