//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use attach::{RawDns, RawMtu};
use netlink::IpVlanMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Gives the sandbox a link with the MAC of a network card of the host.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Name of the link below. Without it, the first interface in `prevResult`, or else the link of
    /// the default route.
    pub master: String,
    /// On which layer the link exchanges packets with others of its master.
    pub mode: Mode,
    /// MTU in bytes, at most the master's; 0 takes that.
    #[schemars(with = "RawMtu")]
    pub mtu: u32,
    /// The master is in the sandbox.
    pub link_in_container: bool,
    /// Name resolution of the result, instead of the IPAM plugin's.
    pub dns: RawDns,
}

/// The mode of an ipvlan link. All links of a master have one mode, that of the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Layer 2: the links answer ARP and receive broadcasts.
    #[default]
    #[serde(alias = "")]
    L2,
    /// Layer 3: the host routes, without ARP and broadcasts.
    L3,
    /// As `l3`, and packets pass the host's firewall.
    L3s,
}

impl From<Mode> for IpVlanMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::L2 => Self::L2,
            Mode::L3 => Self::L3,
            Mode::L3s => Self::L3S,
        }
    }
}
