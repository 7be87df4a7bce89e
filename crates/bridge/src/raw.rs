//! The keys as they are written: what `crates/schema` describes, in the words that stand here.

use cni::WhenFull;
use serde::Deserialize;

/// Joins the sandbox to a Linux bridge by a pair of virtual Ethernet links.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "it mirrors the JSON")]
pub(crate) struct RawConfig {
    /// The bridge; made if it is missing.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 15), extend("default" = "cni0")))]
    pub bridge: Option<String>,
    /// The bridge bears the gateway addresses, and the host forwards.
    pub is_gateway: bool,
    /// As `isGateway`, and the container's default routes lead there.
    pub is_default_gateway: bool,
    /// An address of the bridge that is in the gateway's way, and no other gateway of the network, is replaced.
    pub force_address: bool,
    /// In bytes, of both ends of the pair and of a bridge that is made; 0 detects it.
    #[cfg_attr(feature = "schema", schemars(with = "Mtu"))]
    pub mtu: u32,
    /// Bytes subtracted from the detected MTU, for what an encapsulation takes.
    pub mtu_overhead: u32,
    /// A container reaches itself through a Service: its port reflects.
    pub hairpin_mode: bool,
    /// The bridge is promiscuous.
    pub promisc_mode: bool,
    /// IPv6 duplicate address detection in the sandbox; ADD waits 1 to 2 s for it.
    pub enabledad: bool,
    /// Sets `net.bridge.bridge-nf-call-iptables` and `-ip6tables` to 1, as Kubernetes requires.
    #[cfg_attr(feature = "schema", schemars(extend("default" = true)))]
    pub bridge_nf_call: Option<bool>,
    /// Name resolution of the result, in place of what `ipam` says.
    pub dns: RawDns,
    /// What a container sends beyond its own network and multicast leaves from the host's address.
    pub ip_masq: bool,
    /// It is `nf_tables` in either case.
    pub ip_masq_backend: Backend,
    /// Ports on the host are chosen at random, so that two connections at once never take the same.
    #[cfg_attr(feature = "schema", schemars(extend("default" = true)))]
    pub ip_masq_random_fully: Option<bool>,
    /// CIDRs where a container keeps its own address, too: the cluster's other networks.
    #[serde(rename = "nonMasqueradeCIDRs")]
    pub non_masquerade_cidrs: Vec<String>,
    /// Frames without tag are in this VLAN at the container's port; 0 is none.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 4094)))]
    pub vlan: i64,
    /// The VLANs whose tagged frames the container's port carries.
    pub vlan_trunk: Vec<RawTrunk>,
    /// The port stays in the bridge's default VLAN, too.
    pub preserve_default_vlan: bool,
    /// Frames from another MAC than the container's are dropped at its port.
    pub macspoofchk: bool,
    /// Containers on isolated ports reach the host and ports that are not isolated, and not each other.
    pub port_isolation: bool,
    /// The interface in the sandbox stays down.
    pub disable_container_interface: bool,
    /// What STATUS says when the bridge has no port left: a line on standard error, or code 50.
    #[cfg_attr(feature = "schema", schemars(with = "crate::WhenFull"))]
    pub status_when_full: WhenFull,
}

/// An MTU, or 0.
#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "it is described, never made")]
enum Mtu {
    Detect(#[schemars(range(min = 0, max = 0))] u32),
    Bytes(#[schemars(range(min = 68, max = 65535))] u32),
}

/// Name resolution.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct RawDns {
    /// Addresses of name servers.
    pub nameservers: Option<Vec<String>>,
    /// The domain that short names are looked up in.
    pub domain: Option<String>,
    /// Domains that short names are looked up in.
    pub search: Option<Vec<String>>,
    /// Options of resolv.conf(5).
    pub options: Option<Vec<String>>,
}

/// One VLAN, a range of them, or both.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct RawTrunk {
    /// A VLAN.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 4094)))]
    pub id: Option<i64>,
    /// The first VLAN of a range.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 4094)))]
    #[serde(rename = "minID")]
    pub min_id: Option<i64>,
    /// The last one.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 4094)))]
    #[serde(rename = "maxID")]
    pub max_id: Option<i64>,
}

/// What the reference would do it by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub(crate) enum Backend {
    /// As is done here.
    #[default]
    #[serde(alias = "")]
    Nftables,
    /// Rules of iptables.
    Iptables,
}
