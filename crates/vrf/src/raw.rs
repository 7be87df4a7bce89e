//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use schemars::JsonSchema;
use serde::Deserialize;

/// Adds a container's interface to a VRF.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RawConfig {
    /// Name of the VRF link in the container.
    #[schemars(length(min = 1, max = 15))]
    pub vrfname: String,
    /// Number of the VRF's routing table; 0 for the first free one.
    pub table: u32,
}
