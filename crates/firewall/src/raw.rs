//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lets traffic of containers pass the host's firewall, and isolates bridges.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// The firewall that has to let traffic of containers pass. The default is the chains of
    /// iptables and, if firewalld runs, also a zone of firewalld.
    pub backend: Backend,
    /// Chain of iptables that sees forwarded packets before this plugin accepts any.
    #[schemars(length(max = 28), extend("default" = "CNI-ADMIN", "pattern" = "^([A-Za-z_][A-Za-z0-9_.-]*)?$"))]
    pub iptables_admin_chain_name: Option<String>,
    /// Zone of firewalld that gets the containers' addresses.
    #[schemars(extend("default" = "trusted"))]
    pub firewalld_zone: Option<String>,
    /// The containers that a container accepts packets from, by their bridge.
    pub ingress_policy: IngressPolicy,
    /// Number of the fwmark bit that this plugin sets on permitted packets while they are
    /// forwarded. 13 to 15 are refused.
    #[schemars(range(min = 0, max = 31), extend("default" = 12))]
    pub mark_bit: Option<u64>,
}

/// The firewall that has to let traffic pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// firewalld, if it runs, and the chains of iptables.
    #[default]
    #[serde(rename = "")]
    #[schemars(skip)]
    Unset,
    /// The chains `FORWARD` of iptables only, over netlink.
    Iptables,
    /// The same as `iptables`.
    Nftables,
    /// A zone of firewalld, and the chains of iptables.
    Firewalld,
}

/// The containers that a container accepts packets from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IngressPolicy {
    /// All.
    #[default]
    #[serde(alias = "")]
    Open,
    /// Those on its own bridge, and on bridges without a policy.
    SameBridge,
    /// Those on bridges without a policy.
    Isolated,
}
