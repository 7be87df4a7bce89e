//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use serde_json::Value;

/// Limits what a container receives (ingress) and sends (egress).
///
/// Rates are in bits per second, bursts in bits; 0 means no value.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Average rate that the container receives, in bit/s with Ethernet headers; 0 is no limit.
    #[schemars(with = "Rate", extend("default" = 0))]
    #[serde(deserialize_with = "bits")]
    pub ingress_rate: Option<u64>,
    /// Bits that the container receives at once after a pause; ignored without `ingressRate`; 0 is
    /// `defaultBurst`.
    #[schemars(range(max = 34_359_738_360_u64), extend("default" = 0))]
    #[serde(deserialize_with = "bits")]
    pub ingress_burst: Option<u64>,
    /// Average rate that the container sends, in bit/s with Ethernet headers; 0 is no limit.
    #[schemars(with = "Rate", extend("default" = 0))]
    #[serde(deserialize_with = "bits")]
    pub egress_rate: Option<u64>,
    /// Bits that the container sends at once after a pause; ignored without `egressRate`; 0 is
    /// `defaultBurst`.
    #[schemars(range(max = 34_359_738_360_u64), extend("default" = 0))]
    #[serde(deserialize_with = "bits")]
    pub egress_burst: Option<u64>,
    /// Default burst in bits; 0 is 50 ms of the rate, at least four MTUs.
    #[schemars(range(max = 34_359_738_360_u64), extend("default" = 0))]
    #[serde(deserialize_with = "bits")]
    pub default_burst: Option<u64>,
    /// CIDRs: only traffic with these addresses is limited, and sent packets that are not IP or have
    /// a VLAN tag.
    pub shaped_subnets: Option<Vec<String>>,
    /// CIDRs: traffic with these addresses is not limited.
    pub unshaped_subnets: Option<Vec<String>>,
    /// Resources of device plugins, as in `example.org/egress-10mbit`, whose devices are bandwidth
    /// of the pod: `true` for all, or a list.
    #[schemars(with = "RawPodResources", extend("default" = false))]
    pub pod_resources: Option<Value>,
    /// Absolute path of the kubelet's list of allocated devices, for `podResources`.
    #[schemars(
        regex(pattern = "^/"),
        extend("default" = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
    )]
    pub kubelet_checkpoint: String,
}

/// Resources of device plugins whose devices limit a pod: all with a bandwidth in their name, none,
/// or those with the listed full names, such as `example.org/egress-10mbit`.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only the schema uses it")]
enum RawPodResources {
    /// `true`: all resources whose names end in `ingress-<N>mbit` or `egress-<N>mbit`. `false`:
    /// none.
    All(bool),
    /// The names of the resources.
    Listed(#[schemars(inner(regex(pattern = "^[^/]+/(in|e)gress-[0-9]+mbit$")))] Vec<String>),
}

/// Bits per second, or 0.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only the schema uses it")]
enum Rate {
    None(#[schemars(range(min = 0, max = 0))] u64),
    BitsPerSecond(#[schemars(range(min = 8, max = 1_000_000_000_000_000_u64))] u64),
}

/// Reads a number of bits. For a quantity such as `"20M"`, the error has the number.
fn bits<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_any(Bits).map(Some)
}

struct Bits;

impl Visitor<'_> for Bits {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("u64")
    }

    fn visit_u64<E>(self, bits: u64) -> Result<u64, E> {
        Ok(bits)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        let number = crate::quantity::parse(text);
        let number = number.map_or_else(String::new, |it| format!(", such as {it}"));
        Err(E::custom(format_args!(
            "expected bits or bits per second as a number{number}, found {text:?}"
        )))
    }
}
