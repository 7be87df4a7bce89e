//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use attach::{RawDns, RawMtu};
use schemars::JsonSchema;
use serde::Deserialize;

/// Gives the sandbox a VLAN of a network card of the host.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Name of the link below, which may be a VLAN link itself (`QinQ`).
    #[schemars(length(min = 1, max = 15))]
    pub master: String,
    /// The VLAN.
    #[schemars(range(min = 0, max = 4094))]
    pub vlan_id: u16,
    /// MTU in bytes, at most the master's; 0 takes that.
    #[schemars(with = "RawMtu")]
    pub mtu: u32,
    /// The master is in the sandbox.
    pub link_in_container: bool,
    /// Name resolution of the result, instead of the IPAM plugin's.
    pub dns: RawDns,
}
