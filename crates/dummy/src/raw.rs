//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use attach::RawDns;
use schemars::JsonSchema;
use serde::Deserialize;

/// Gives the sandbox a link that drops what it sends, for addresses that only the sandbox uses.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RawConfig {
    /// Name resolution of the result, instead of the IPAM plugin's.
    pub dns: RawDns,
}
