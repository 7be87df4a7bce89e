//! The sandbox and arguments that plugins are called with.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cni::Attachment;
use nix::sys::statfs::{NSFS_MAGIC, statfs};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// One interface of one sandbox, and the arguments for its plugins.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// Network, container ID and interface.
    pub attachment: Attachment,
    /// The namespace's path, as passed to the plugins.
    pub netns: PathBuf,
    /// Arguments of the runtime for the plugins.
    pub arguments: Arguments,
}

/// Arguments that a runtime passes to the plugins besides their configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Arguments {
    /// `CNI_ARGS`, as pairs of key and value.
    #[serde(
        rename = "cniArgs",
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub cni: Vec<[String; 2]>,
    /// Values of capabilities. Each plugin gets the values of the capabilities that it declares.
    #[serde(
        rename = "capabilityArgs",
        deserialize_with = "or_default",
        skip_serializing_if = "Map::is_empty"
    )]
    pub capabilities: Map<String, Value>,
}

/// Reads `null` as the default value, since Go writes an empty list or map as `null`.
fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl Arguments {
    /// Parses `KEY=value;KEY=value`, the format of `CNI_ARGS`.
    ///
    /// # Errors
    /// A pair has no key, no value or more than one `=`.
    pub fn pairs(text: &str) -> anyhow::Result<Vec<[String; 2]>> {
        let pairs = text.split(';').map(|pair| {
            let parts = pair.split_once('=');
            let parts = parts.filter(|(key, value)| {
                !key.is_empty() && !value.is_empty() && !value.contains('=')
            });
            let (key, value) = parts.with_context(|| format!("{pair:?} is not KEY=value"))?;
            Ok([key.to_owned(), value.to_owned()])
        });
        pairs.collect()
    }

    /// Returns the value of `key` in `CNI_ARGS`; `None` if `CNI_ARGS` does not have the key.
    pub fn cni_value(&self, key: &str) -> Option<&str> {
        let pair = self.cni.iter().find(|[name, _]| name == key);
        pair.map(|[_, value]| value.as_str())
    }

    /// Returns `CNI_ARGS` as one string, which [`Self::pairs`] parses.
    pub fn cni_text(&self) -> String {
        let pairs: Vec<_> = self.cni.iter().map(|pair| pair.join("=")).collect();
        pairs.join(";")
    }

    /// Returns the values of the capabilities in `declared`, which a plugin receives as
    /// `runtimeConfig`.
    pub fn runtime_config(&self, declared: &[String]) -> Map<String, Value> {
        let mut passed = self.capabilities.clone();
        passed.retain(|name, _| declared.contains(name));
        passed
    }
}

/// Returns whether a sandbox at `netns` may exist. Returns `false` only if there is no file at this
/// path, or a file that is not a namespace. Returns `true` for an empty path and after any other
/// error, because the sandbox may exist then.
pub fn may_exist(netns: &Path) -> bool {
    if netns.as_os_str().is_empty() {
        return true;
    }
    match statfs(netns) {
        Ok(found) => found.filesystem_type() == NSFS_MAGIC,
        Err(error) => error != nix::Error::ENOENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_pairs() {
        let pairs = Arguments::pairs("IP=192.0.2.7;MAC=0a:58:c0:00:02:07").unwrap();
        let arguments = Arguments {
            cni: pairs,
            ..Arguments::default()
        };
        assert_eq!(arguments.cni_text(), "IP=192.0.2.7;MAC=0a:58:c0:00:02:07");
        for text in ["", "IP", "=1", "IP=", "IP=1=2", "IP=1;"] {
            assert!(Arguments::pairs(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_declared_capabilities_are_passed() {
        let capabilities = serde_json::json!({"mac": "02::1", "ips": []});
        let arguments = Arguments {
            capabilities: capabilities.as_object().unwrap().clone(),
            ..Arguments::default()
        };
        let passed = arguments.runtime_config(&["ips".into(), "bandwidth".into()]);
        assert_eq!(Value::Object(passed), serde_json::json!({"ips": []}));
    }
}
