//! Configuration keys that `bridge`, `ptp` and other plugins parse in the same way.

use cni::keys::KNOWN_ARGS;
use cni::{CniArgs, Error, Network};
use netlink::MacAddress;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An MTU, or 0; the schema of the key `mtu`.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum RawMtu {
    /// 0: the plugin detects the MTU.
    Detect(#[schemars(range(min = 0, max = 0))] u32),
    /// The MTU in bytes.
    Bytes(#[schemars(range(min = 68, max = 65535))] u32),
}

/// The firewall program that a configuration of the Go plugins names, in `ipMasqBackend` or in
/// `backend` of `portmap`. The plugins of this suite accept both values and use `nf_tables`.
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

/// Returns the requested MAC, or `None` if none is requested. The first source with a value counts:
/// the runtime (`runtimeConfig.mac`), `args.cni.mac`, then `MAC` in `CNI_ARGS`.
///
/// # Errors
/// - Code 4: `CNI_ARGS` is malformed or contains an unknown key.
/// - Code 7: the text is not a MAC, or not a unicast address.
pub fn asked_mac(network: &Network, args: &CniArgs) -> Result<Option<MacAddress>, Error> {
    args.expect_only(KNOWN_ARGS)?;
    let [runtime, conventional] = ["runtimeConfig.mac", "args.cni.mac"];
    let argument = args.value("MAC").unwrap_or_default().to_owned();
    let asked: [(_, String); 3] = [
        (runtime, network.key(runtime)?),
        (conventional, network.key(conventional)?),
        ("CNI_ARGS MAC", argument),
    ];
    let asked = asked.into_iter().find(|(_, text)| !text.is_empty());
    asked.map(|(key, text)| unicast(key, &text)).transpose()
}

/// Returns the requested MAC as [`asked_mac`] does, or else `configured`, the value of the key `mac`.
///
/// # Errors
/// As [`asked_mac`].
pub fn configured_mac(
    network: &Network,
    args: &CniArgs,
    configured: &str,
) -> Result<Option<MacAddress>, Error> {
    let configured = Some(configured).filter(|it| !it.is_empty());
    match asked_mac(network, args)? {
        None => configured.map(|it| unicast("mac", it)).transpose(),
        asked => Ok(asked),
    }
}

fn unicast(key: &str, text: &str) -> Result<MacAddress, Error> {
    match text.parse::<MacAddress>() {
        Ok(mac) if mac.is_unicast() => Ok(mac),
        Ok(mac) => Err(Error::invalid(key, format!("{mac} is no unicast address"))),
        Err(reason) => Err(Error::invalid(key, format!("{text:?}: {reason}"))),
    }
}
