//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use std::fmt;

use cni::WhenFull;
use cni::keys::RawRoute;
use schemars::JsonSchema;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Leases addresses from ranges and keeps them in files.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Range sets: a container gets one address of each inner list, whose ranges are of one family.
    #[serde(deserialize_with = "sets")]
    pub ranges: Vec<Vec<RawRange>>,
    /// Subnet of one more set, before `ranges`; `usePodCidr` stands for the node's pod CIDRs.
    pub subnet: String,
    /// The first leased address of `subnet`.
    pub range_start: String,
    /// The last leased address of `subnet`.
    pub range_end: String,
    /// The gateway of `subnet` in the result; it is not leased from its set.
    pub gateway: String,
    /// Addresses and CIDRs of `subnet` that are leased on request only.
    pub exclude: Vec<String>,
    /// File for `usePodCidr`: CIDRs separated by white space or commas, or flannel's variables.
    #[schemars(extend("default" = "/run/flannel/subnet.env"))]
    pub pod_cidr_file: String,
    /// Routes in the result, for the plugin that creates them.
    pub routes: Vec<RawRoute>,
    /// Path of a resolv.conf(5) whose content becomes `dns` of the result.
    pub resolv_conf: String,
    /// Result of STATUS when a set has no free address: a line on standard error, or code 50.
    pub status_when_full: WhenFull,
    /// Absolute path of the directory of leases.
    #[schemars(regex(pattern = "^/"), extend("default" = "/var/lib/cni/networks"))]
    pub data_dir: String,
    /// Longest wait for another process's lock on the network's leases, such as `30s`.
    #[schemars(extend("default" = "30s"))]
    pub lock_timeout: String,
    /// Cooldown of a released address, such as `5m`; a request for the address ignores it.
    #[schemars(extend("default" = "0s"))]
    pub reuse_delay: String,
    /// Releases leases of an earlier boot.
    #[schemars(extend("default" = true))]
    pub reclaim_on_boot: Option<bool>,
}

/// Consecutive addresses of one subnet.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(extend("required" = ["subnet"]))]
#[serde(rename_all = "camelCase", default)]
pub struct RawRange {
    /// Subnet without host bits.
    pub subnet: String,
    /// The first leased address.
    pub range_start: String,
    /// The last leased address.
    pub range_end: String,
    /// The gateway in the result; it is never leased and may be outside the subnet.
    pub gateway: String,
    /// Addresses and CIDRs that are leased on request only.
    pub exclude: Vec<String>,
}

/// Reads `ranges`. For a flat list of ranges, the error shows the form that is expected.
fn sets<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<RawRange>>, D::Error> {
    let sets = Vec::<RawSet>::deserialize(from)?;
    Ok(sets.into_iter().map(|it| it.0).collect())
}

struct RawSet(Vec<RawRange>);

impl<'de> Deserialize<'de> for RawSet {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Ranges).map(Self)
    }
}

struct Ranges;

impl<'de> Visitor<'de> for Ranges {
    type Value = Vec<RawRange>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of ranges, as in \"ranges\": [[{\"subnet\": \"10.1.0.0/24\"}]]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, set: A) -> Result<Vec<RawRange>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(set))
    }
}
