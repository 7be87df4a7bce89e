//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use attach::{Backend, RawDns, RawMtu};
use schemars::JsonSchema;
use serde::Deserialize;

/// Connects the sandbox to the host by a veth pair and routes.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// MTU in bytes of both ends of the pair; 0 detects it.
    #[schemars(with = "RawMtu")]
    pub mtu: u32,
    /// Bytes of an encapsulation, subtracted from the detected MTU.
    pub mtu_overhead: u32,
    /// The container's interface accepts router advertisements.
    pub accept_ra: bool,
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
}
