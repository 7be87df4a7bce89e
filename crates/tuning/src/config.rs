//! The configuration: the plugin's keys and the runtime's arguments.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cni::keys::{self, KNOWN_ARGS};
use cni::{CniArgs, Error, InterfaceName, Network};
use netlink::MacAddress;
use netns::Sysctl;

use crate::{RawConfig, Settings, SysctlName};

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The sysctls to set in the sandbox, in the order of their names.
    pub sysctls: BTreeMap<SysctlName, Asked>,
    /// The settings to give the sandbox's interface.
    pub link: Settings,
    /// Directory of the records. A record contains the settings that an interface had before ADD.
    pub data_dir: PathBuf,
}

/// A sysctl in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The name as written in the configuration. The operator's allowlist is matched against this
    /// form.
    pub written: String,
    /// The value to set.
    pub value: String,
}

impl Config {
    /// Parses the configuration and the runtime's arguments. A sysctl or an interface setting in
    /// `args.cni` takes precedence over the same one in the configuration.
    ///
    /// # Errors
    /// - Code 4: `CNI_ARGS` has an unknown key.
    /// - Code 7: a value is invalid; the error names the key.
    pub fn parse(network: &Network, args: &CniArgs) -> Result<Self, Error> {
        args.expect_only(KNOWN_ARGS)?;
        let raw: RawConfig = network.config()?;
        if let Some(name) = network.repeated_key("sysctl") {
            return Err(repeated(&name));
        }
        let asked: RawConfig = network.args_cni()?;
        let runtime: String = network.key("runtimeConfig.mac")?;
        let mut sysctls = by_name(raw.sysctl)?;
        for (name, asked) in by_name(asked.sysctl)? {
            let value = asked.value.clone();
            sysctls.entry(name).or_insert(asked).value = value;
        }
        let mac = [
            ("args.cni.mac", asked.mac.as_deref()),
            ("runtimeConfig.mac", given(&runtime)),
            ("CNI_ARGS MAC", args.value("MAC").and_then(given)),
            ("mac", raw.mac.as_deref()),
        ];
        Ok(Self {
            sysctls,
            link: Settings {
                mac: first_mac(mac)?,
                promisc: asked.promisc.or(raw.promisc).filter(|on| *on),
                mtu: asked.mtu.or(raw.mtu).filter(|bytes| *bytes != 0),
                allmulti: asked.allmulti.or(raw.allmulti),
                tx_q_len: asked.tx_q_len.or(raw.tx_q_len),
            },
            data_dir: data_dir(network)?,
        })
    }

    /// Returns the sysctls and their values, with `interface` in place of `IFNAME` in the names.
    pub(crate) fn sysctls(&self, interface: &InterfaceName) -> Vec<(Sysctl, &str)> {
        let sysctls = self.sysctls.iter();
        sysctls
            .map(|(name, asked)| (name.sysctl(interface), asked.value.as_str()))
            .collect()
    }
}

/// Parses the names of the sysctls in `raw`, and returns the values by these names. Fails if two
/// names differ only in their separators (dots and slashes), because they mean one sysctl.
fn by_name(raw: BTreeMap<String, String>) -> Result<BTreeMap<SysctlName, Asked>, Error> {
    let mut sysctls = BTreeMap::new();
    for (written, value) in raw {
        let name = SysctlName::parse(&written)?;
        if sysctls.contains_key(&name) {
            return Err(repeated(&written));
        }
        sysctls.insert(name, Asked { written, value });
    }
    Ok(sysctls)
}

fn repeated(name: &str) -> Error {
    Error::invalid(format!("sysctl.{name}"), "it is there twice")
}

/// Returns the directory of the records: `dataDir`, or its default. Parses no other key, because
/// DEL and GC need no other one.
///
/// # Errors
/// Code 7: the path is not absolute.
pub(crate) fn data_dir(network: &Network) -> Result<PathBuf, Error> {
    let text: String = network.key("dataDir")?;
    keys::absolute(&text, "/run/cni/tuning", "dataDir")
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Parses the MAC of the first source whose key is set. Returns `None` if no key is set, or if the
/// text of this first source is empty. A source is the name of a key and its text; the text is
/// `None` if the key is not set.
fn first_mac(sources: [(&str, Option<&str>); 4]) -> Result<Option<MacAddress>, Error> {
    let mut texts = sources
        .into_iter()
        .filter_map(|(key, text)| Some((key, text?)));
    let Some((key, text)) = texts.next().filter(|(_, text)| !text.is_empty()) else {
        return Ok(None);
    };
    let invalid = |reason: &str| Error::invalid(key, format!("{text:?}: {reason}"));
    let mac: MacAddress = text.parse().map_err(|_| invalid("no MAC address"))?;
    if !mac.is_unicast() {
        return Err(invalid("no unicast address"));
    }
    Ok(Some(mac))
}
