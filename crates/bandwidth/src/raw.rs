//! The keys as they are written: what `crates/schema` describes, in the words that stand here.

use serde::Deserialize;

/// Limits what a container receives (ingress) and sends (egress).
///
/// Rates are bits a second, bursts bits; 0 stands for none.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RawConfig {
    /// What the container receives, bit/s on average, Ethernet headers included; 0 is no limit.
    #[cfg_attr(feature = "schema", schemars(with = "Rate", extend("default" = 0)))]
    pub ingress_rate: Option<u64>,
    /// Bits that it receives at once after a pause; nothing without `ingressRate`; 0 is `defaultBurst`.
    #[cfg_attr(feature = "schema", schemars(range(max = 34_359_738_360_u64), extend("default" = 0)))]
    pub ingress_burst: Option<u64>,
    /// What the container sends, bit/s on average, Ethernet headers included; 0 is no limit.
    #[cfg_attr(feature = "schema", schemars(with = "Rate", extend("default" = 0)))]
    pub egress_rate: Option<u64>,
    /// Bits that it sends at once after a pause; nothing without `egressRate`; 0 is `defaultBurst`.
    #[cfg_attr(feature = "schema", schemars(range(max = 34_359_738_360_u64), extend("default" = 0)))]
    pub egress_burst: Option<u64>,
    /// The burst in bits where nobody chose one; 0 is 50 ms of the rate, at least four MTUs.
    #[cfg_attr(feature = "schema", schemars(range(max = 34_359_738_360_u64), extend("default" = 0)))]
    pub default_burst: Option<u64>,
    /// CIDRs: only traffic with these is limited, and what is neither IPv4 nor IPv6.
    pub shaped_subnets: Option<Vec<String>>,
    /// CIDRs: traffic with these is not limited.
    pub unshaped_subnets: Option<Vec<String>>,
}

/// Bits a second, or 0.
#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "it is described, never made")]
enum Rate {
    None(#[schemars(range(min = 0, max = 0))] u64),
    BitsPerSecond(#[schemars(range(min = 8, max = 1_000_000_000_000_000_u64))] u64),
}
