//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use schemars::JsonSchema;
use serde::Deserialize;

/// Routes a container's packets by their source address.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Number of a routing table that another program fills; the plugin then only adds rules.
    #[schemars(range(min = 1))]
    pub table: Option<u32>,
    /// Gateways in place of those of the addresses, at most one for each family.
    #[schemars(length(max = 2))]
    pub gateways: Vec<String>,
    /// The table `main` keeps the interface's routes without a gateway, with the address as source.
    pub add_source_hints: bool,
}
