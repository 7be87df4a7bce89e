//! The configuration keys as written in JSON. `crates/schema` generates the schema from these
//! comments.

use attach::Backend;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Forwards ports of the host to a container.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Masquerades clients if the container's answers to them would not pass through the host.
    #[schemars(extend("default" = true))]
    pub snat: Option<bool>,
    /// Masquerades all clients.
    pub masq_all: bool,
    /// No effect: the plugin needs no marks.
    #[schemars(range(min = 0, max = 31))]
    pub mark_masq_bit: Option<u64>,
    /// No effect: the plugin needs no marks.
    pub external_set_mark_chain: Option<String>,
    /// The plugin uses `nf_tables` in both cases.
    pub backend: Backend,
    /// What keeps neighbours off 127.0.0.0/8, besides cni-agent.
    pub localhost_guard: LocalhostGuard,
    /// Forwards only IPv4 packets that match all of these conditions, in the syntax of nft(8).
    #[serde(rename = "conditionsV4")]
    pub conditions_v4: Vec<String>,
    /// Forwards only IPv6 packets that match all of these conditions, in the syntax of nft(8).
    #[serde(rename = "conditionsV6")]
    pub conditions_v6: Vec<String>,
}

/// What keeps neighbours off 127.0.0.0/8, besides cni-agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalhostGuard {
    /// Rules of `nf_tables`, and `IPsec` policies, which survive `nft flush ruleset`.
    #[default]
    Policies,
    /// Rules of `nf_tables` alone.
    Rules,
}
