//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use cni::keys::{RawDns, RawRoute};
use schemars::JsonSchema;
use serde::Deserialize;

/// Gives the addresses that the configuration or the runtime names.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RawConfig {
    /// Addresses of the container, unless the runtime passes others.
    pub addresses: Vec<RawAddress>,
    /// Routes in the result, for the plugin that creates them.
    pub routes: Vec<RawRoute>,
    /// Name resolution in the result.
    pub dns: RawDns,
}

/// An address and its gateway.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct RawAddress {
    /// Address with the prefix length of its network.
    pub address: String,
    /// The gateway in the result; none if it is absent.
    #[serde(default)]
    pub gateway: String,
}
