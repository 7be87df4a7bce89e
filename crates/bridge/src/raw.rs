//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use attach::{Backend, RawDns, RawMtu};
use cni::WhenFull;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// Joins the sandbox to a Linux bridge by a veth pair.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "it mirrors the JSON")]
pub struct RawConfig {
    /// Name of the bridge, which is created if it is missing.
    #[schemars(length(min = 1, max = 15), extend("default" = "cni0"))]
    pub bridge: Option<String>,
    /// The bridge has the gateway addresses, and the host forwards.
    pub is_gateway: bool,
    /// Like `isGateway`, and the container's default routes lead to the gateway.
    pub is_default_gateway: bool,
    /// Replaces an address of the bridge that conflicts with the gateway's, except for other
    /// gateways of the network.
    pub force_address: bool,
    /// MTU in bytes of both ends of the pair and of a new bridge; 0 detects it.
    #[schemars(with = "RawMtu")]
    pub mtu: u32,
    /// Bytes of an encapsulation, subtracted from the detected MTU.
    pub mtu_overhead: u32,
    /// The container's port reflects frames, so the container can reach itself through a Service.
    pub hairpin_mode: bool,
    /// The bridge is promiscuous.
    pub promisc_mode: bool,
    /// IPv6 duplicate address detection in the sandbox; ADD waits 1 to 2 s for it.
    pub enabledad: bool,
    /// The container's interface accepts router advertisements, and derives addresses from them; if
    /// the key is absent, it does not if the host is the gateway or `ipam` gives an IPv6 address.
    pub accept_ra: Option<bool>,
    /// Whose bridged frames pass the firewall's rules, which Services need: `"bridge"`, those of this
    /// bridge; `"host"` or `true`, those of all bridges of the host; `false` changes nothing.
    #[schemars(with = "NfCall")]
    pub bridge_nf_call: Option<Value>,
    /// Name resolution of the result, instead of the IPAM plugin's.
    pub dns: RawDns,
    /// Masquerades the container's traffic to destinations outside its own network and multicast.
    pub ip_masq: bool,
    /// Accepted for compatibility; masquerading always uses `nf_tables`.
    pub ip_masq_backend: Backend,
    /// Masquerading chooses random source ports, so simultaneous connections rarely take the same
    /// one.
    #[schemars(extend("default" = true))]
    pub ip_masq_random_fully: Option<bool>,
    /// CIDRs without masquerading: the cluster's other networks.
    #[serde(rename = "nonMasqueradeCIDRs")]
    pub non_masquerade_cidrs: Vec<String>,
    /// VLAN of untagged frames at the container's port; 0 is none.
    #[schemars(range(min = 0, max = 4094))]
    pub vlan: i64,
    /// VLANs whose tagged frames the container's port carries.
    pub vlan_trunk: Vec<RawTrunk>,
    /// The port stays in the bridge's default VLAN, too.
    pub preserve_default_vlan: bool,
    /// Drops frames from a MAC other than the container's at its port.
    pub macspoofchk: bool,
    /// Containers on isolated ports reach the host and ports without isolation, but not each other.
    pub port_isolation: bool,
    /// The interface in the sandbox stays down.
    pub disable_container_interface: bool,
    /// Result of STATUS when the bridge has no port left: a line on standard error, or code 50.
    pub status_when_full: WhenFull,
}

/// Values of `bridgeNfCall`.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only the JSON Schema has it")]
enum NfCall {
    Switch(bool),
    Scope(NfCallScope),
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "only the JSON Schema has it")]
enum NfCallScope {
    Bridge,
    Host,
}

/// A VLAN, a range of VLANs, or both.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RawTrunk {
    /// A VLAN.
    #[schemars(range(min = 1, max = 4094))]
    pub id: Option<i64>,
    /// The first VLAN of a range.
    #[schemars(range(min = 1, max = 4094))]
    #[serde(rename = "minID")]
    pub min_id: Option<i64>,
    /// The last VLAN of a range.
    #[schemars(range(min = 1, max = 4094))]
    #[serde(rename = "maxID")]
    pub max_id: Option<i64>,
}
