//! Keys that all interface plugins parse in the same way.

use cni::result::Dns;
use cni::{CniArgs, Error, Network};
use netlink::MacAddress;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name resolution.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RawDns {
    /// Addresses of name servers.
    pub nameservers: Option<Vec<String>>,
    /// The domain that short names are looked up in.
    pub domain: Option<String>,
    /// Domains that short names are looked up in.
    pub search: Option<Vec<String>>,
    /// Options of resolv.conf(5).
    pub options: Option<Vec<String>>,
}

/// An MTU, or 0; the schema of the key `mtu`.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum RawMtu {
    /// 0.
    Detect(#[schemars(range(min = 0, max = 0))] u32),
    /// In bytes.
    Bytes(#[schemars(range(min = 68, max = 65535))] u32),
}

/// The firewall that the reference would use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// `nf_tables`, as in this suite.
    #[default]
    #[serde(alias = "")]
    Nftables,
    /// Rules of iptables.
    Iptables,
}

/// Parses `dns`; `None` if it has no keys. An empty list counts as a key.
pub fn dns(raw: RawDns) -> Option<Dns> {
    let domain = raw.domain.filter(|domain| !domain.is_empty());
    let lists = [&raw.nameservers, &raw.search, &raw.options];
    let is_asked = domain.is_some() || lists.iter().any(|list| list.is_some());
    is_asked.then(|| Dns {
        nameservers: raw.nameservers.unwrap_or_default(),
        domain,
        search: raw.search.unwrap_or_default(),
        options: raw.options.unwrap_or_default(),
        ..Dns::default()
    })
}

/// Returns the requested MAC, from the runtime, else `args.cni`, else `CNI_ARGS`.
///
/// # Errors
/// Code 7: the text is not a MAC, or not a unicast address.
pub fn asked_mac(network: &Network, args: &CniArgs) -> Result<Option<MacAddress>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Section {
        mac: String,
    }
    let runtime = network.runtime_config::<Section>()?.mac;
    let conventional = network.args_cni::<Section>()?.mac;
    let argument = args.value("MAC").unwrap_or_default().to_owned();
    let asked = [
        ("runtimeConfig.mac", runtime),
        ("args.cni.mac", conventional),
        ("CNI_ARGS MAC", argument),
    ];
    let Some((key, text)) = asked.into_iter().find(|(_, text)| !text.is_empty()) else {
        return Ok(None);
    };
    match text.parse::<MacAddress>() {
        Ok(mac) if mac.is_unicast() => Ok(Some(mac)),
        Ok(mac) => Err(Error::invalid(key, format!("{mac} is no unicast address"))),
        Err(reason) => Err(Error::invalid(key, format!("{text:?}: {reason}"))),
    }
}

/// Variables of `CNI_ARGS` that a plugin accepts. `IP` and `GATEWAY` are for the IPAM plugin, which
/// inherits the environment.
pub const KNOWN_ARGS: &[&str] = &[
    "MAC",
    "IP",
    "GATEWAY",
    "K8S_POD_NAMESPACE",
    "K8S_POD_NAME",
    "K8S_POD_INFRA_CONTAINER_ID",
    "K8S_POD_UID",
];
