//! The keys as they are written: what `crates/schema` describes, in the words that stand here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Leads ports of the host to a container.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Clients whom the container could not answer come from the host's address.
    #[schemars(extend("default" = true))]
    pub snat: Option<bool>,
    /// All clients come from the host's address.
    pub masq_all: bool,
    /// Nothing: no marks are needed.
    #[schemars(range(min = 0, max = 31))]
    pub mark_masq_bit: Option<u64>,
    /// Nothing: no marks are needed.
    pub external_set_mark_chain: Option<String>,
    /// It is `nf_tables` in either case.
    pub backend: Backend,
    /// The ports are for IPv4 packets of which all of this is true, as nft(8) has it.
    #[serde(rename = "conditionsV4")]
    pub conditions_v4: Vec<String>,
    /// The ports are for IPv6 packets of which all of this is true, as nft(8) has it.
    #[serde(rename = "conditionsV6")]
    pub conditions_v6: Vec<String>,
}

/// What the reference would do it by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// As is done here.
    #[default]
    #[serde(alias = "")]
    Nftables,
    /// Rules of iptables.
    Iptables,
}
