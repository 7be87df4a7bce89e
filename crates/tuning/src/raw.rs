//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

/// Changes sysctls of a sandbox and settings of its interface.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Values of sysctls below `net`, by name with dots or slashes; `IFNAME` in a name stands for
    /// the interface.
    pub sysctl: BTreeMap<String, String>,
    /// MAC of the interface.
    pub mac: Option<String>,
    /// Promiscuous mode; false leaves it alone.
    #[schemars(extend("default" = false))]
    pub promisc: Option<bool>,
    /// MTU in bytes; 0 leaves it alone.
    #[schemars(extend("default" = 0))]
    pub mtu: Option<u32>,
    /// The interface receives all multicast packets, or only those of its groups.
    pub allmulti: Option<bool>,
    /// Length of the transmit queue in packets.
    #[serde(rename = "txQLen")]
    pub tx_q_len: Option<u32>,
    /// Absolute path of the directory of former settings.
    #[schemars(regex(pattern = "^/"), extend("default" = "/run/cni/tuning"))]
    pub data_dir: String,
}
