//! The configuration keys as the operator writes them. `crates/schema` copies these comments.

use schemars::JsonSchema;
use serde::Deserialize;

/// Limits what a container receives (ingress) and sends (egress).
///
/// Rates are in bits per second, bursts in bits; 0 means no value.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Average rate that the container receives, in bit/s with Ethernet headers; 0 is no limit.
    #[schemars(with = "Rate", extend("default" = 0))]
    pub ingress_rate: Option<u64>,
    /// Bits that it receives at once after a pause; ignored without `ingressRate`; 0 is
    /// `defaultBurst`.
    #[schemars(range(max = 34_359_738_360_u64), extend("default" = 0))]
    pub ingress_burst: Option<u64>,
    /// Average rate that the container sends, in bit/s with Ethernet headers; 0 is no limit.
    #[schemars(with = "Rate", extend("default" = 0))]
    pub egress_rate: Option<u64>,
    /// Bits that it sends at once after a pause; ignored without `egressRate`; 0 is `defaultBurst`.
    #[schemars(range(max = 34_359_738_360_u64), extend("default" = 0))]
    pub egress_burst: Option<u64>,
    /// Default burst in bits; 0 is 50 ms of the rate, at least four MTUs.
    #[schemars(range(max = 34_359_738_360_u64), extend("default" = 0))]
    pub default_burst: Option<u64>,
    /// CIDRs: only traffic with these and traffic that is neither IPv4 nor IPv6 is limited.
    pub shaped_subnets: Option<Vec<String>>,
    /// CIDRs: traffic with these is not limited.
    pub unshaped_subnets: Option<Vec<String>>,
}

/// Bits per second, or 0.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only the schema uses it")]
enum Rate {
    None(#[schemars(range(min = 0, max = 0))] u64),
    BitsPerSecond(#[schemars(range(min = 8, max = 1_000_000_000_000_000_u64))] u64),
}
