//! The keys as they are written: what `crates/schema` describes, in the words that stand here.

use cni::WhenFull;
use serde::Deserialize;

/// Leases addresses from ranges, remembered in files.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RawConfig {
    /// A container gets one address of each inner list, whose ranges are of one family.
    pub ranges: Vec<Vec<RawRange>>,
    /// One more set of one range, before `ranges`; `usePodCidr` stands for the node's pod CIDRs.
    pub subnet: String,
    /// The first address of `subnet` that is leased.
    pub range_start: String,
    /// The last address of `subnet` that is leased.
    pub range_end: String,
    /// The gateway of `subnet`; told to the container, never leased.
    pub gateway: String,
    /// Addresses and CIDRs of `subnet` that are leased to nobody who does not ask for them.
    pub exclude: Vec<String>,
    /// Where `usePodCidr` finds CIDRs separated by white space or commas, or flannel's variables.
    #[cfg_attr(feature = "schema", schemars(extend("default" = "/run/flannel/subnet.env")))]
    pub pod_cidr_file: String,
    /// Routes for whoever makes them.
    pub routes: Vec<RawRoute>,
    /// A resolv.conf(5) whose content becomes `dns` of the result.
    pub resolv_conf: String,
    /// What STATUS says when a set has no free address: a line on standard error, or code 50.
    #[cfg_attr(feature = "schema", schemars(with = "crate::WhenFull"))]
    pub status_when_full: WhenFull,
    /// The absolute path where leases lie.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^/"), extend("default" = "/var/lib/cni/networks")))]
    pub data_dir: String,
    /// How long another process may keep the lock on the network's leases, such as `30s`.
    #[cfg_attr(feature = "schema", schemars(extend("default" = "30s")))]
    pub lock_timeout: String,
    /// How long an address that was released rests, unless somebody asks for it, such as `5m`.
    #[cfg_attr(feature = "schema", schemars(extend("default" = "0s")))]
    pub reuse_delay: String,
    /// Leases of an earlier boot are released.
    #[cfg_attr(feature = "schema", schemars(extend("default" = true)))]
    pub reclaim_on_boot: Option<bool>,
}

/// Consecutive addresses of one subnet.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["subnet"])))]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RawRange {
    /// A CIDR without host bits, /30 or /126 at the longest.
    pub subnet: String,
    /// The first that is leased.
    pub range_start: String,
    /// The last that is leased.
    pub range_end: String,
    /// Told to the container, never leased; it may lie outside the subnet.
    pub gateway: String,
    /// Addresses and CIDRs that are leased to nobody who does not ask for them.
    pub exclude: Vec<String>,
}

/// A route, and what version 1.1.0 knows of one.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct RawRoute {
    /// The CIDR where it leads.
    pub dst: String,
    /// The address that it leads by; the network's gateway where it is absent.
    #[serde(default)]
    pub gw: String,
    /// Bytes.
    pub mtu: Option<u32>,
    /// The TCP segments that are announced, in bytes.
    pub advmss: Option<u32>,
    /// Its metric.
    pub priority: Option<u32>,
    /// The number of its table.
    pub table: Option<u32>,
    /// Its scope: 0 global, 253 link, 254 host.
    pub scope: Option<u8>,
}
