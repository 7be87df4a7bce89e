//! Finds and parses network configuration lists.
//!
//! This module does not know sandboxes. The caller passes keys that depend on a sandbox, such as
//! `runtimeConfig`, to [`PluginConfig::request`].

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use cni::{NetworkName, SpecVersion, json, note};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::parts::{self, candidates, switch};

/// A network configuration list.
#[derive(Debug, Clone)]
pub struct Conflist {
    /// Name of the network.
    pub name: NetworkName,
    /// The highest version in `cniVersion` and `cniVersions` that this crate supports.
    pub version: SpecVersion,
    /// Value of the key `disableCheck`: whether CHECK succeeds without calling plugins.
    pub disable_check: bool,
    /// Value of the key `disableGC`: whether the operator forbids GC.
    pub disable_gc: bool,
    /// The plugins, in the order in which ADD calls them; never empty.
    pub plugins: Vec<PluginConfig>,
    /// The JSON document of the list.
    pub bytes: Vec<u8>,
}

/// One plugin of a list.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PluginConfig {
    /// Name of the plugin's executable, without a directory (key `type`).
    #[serde(rename = "type")]
    pub program: String,
    /// Capabilities that the plugin declares with the value `true`.
    #[serde(deserialize_with = "declared")]
    pub capabilities: Vec<String>,
    /// All keys of the plugin.
    #[serde(skip)]
    pub config: Map<String, Value>,
}

impl PluginConfig {
    /// Returns the value of the plugin's key that is called `name` in upper or lower case; `None`
    /// if the key is missing or `null`.
    pub fn key(&self, name: &str) -> Option<&Value> {
        json::value(&self.config, name)
    }

    /// Returns whether [`Self::key`] of `name` is `true`.
    pub fn is_set(&self, name: &str) -> bool {
        self.key(name).and_then(Value::as_bool) == Some(true)
    }

    /// Returns the `ipam` section; `None` if it is missing or not an object.
    pub fn ipam(&self) -> Option<&Map<String, Value>> {
        self.key("ipam")?.as_object()
    }

    /// Returns the `type` of the `ipam` section, the name of the IPAM plugin; `None` if the section
    /// or its `type` is missing or invalid.
    pub fn ipam_type(&self) -> Option<&str> {
        let name = json::value(self.ipam()?, "type")?.as_str();
        name.filter(|it| !it.is_empty())
    }

    /// Returns the plugin to which the plugin `flannel` delegates, with the configuration that
    /// `flannel` passes to it, but without `mtu` and `ipMasq`, which depend on flannel's daemon.
    /// Returns `None` for any other plugin.
    pub fn delegate(&self) -> Option<Self> {
        if self.program != "flannel" {
            return None;
        }
        let config = self.key("delegate").and_then(Value::as_object);
        let mut config = config.cloned().unwrap_or_default();
        let mut ipam = self.ipam().cloned().unwrap_or_default();
        ipam.entry("type").or_insert(json!("host-local"));
        ipam.entry("subnet").or_insert(json!("usePodCidr"));
        if let Some(file) = self.key("subnetFile") {
            ipam.insert("podCidrFile".to_owned(), file.clone());
        }
        config.entry("type").or_insert(json!("bridge"));
        if config.get("type") == Some(&json!("bridge")) {
            config.entry("isGateway").or_insert(json!(true));
        }
        config.insert("ipam".to_owned(), Value::Object(ipam));
        Self::parse(Value::Object(config)).ok()
    }

    /// Returns the `type` of the plugin and the `type` of its IPAM plugin, if it has one.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        [self.program.as_str()].into_iter().chain(self.ipam_type())
    }

    fn parse(config: Value) -> anyhow::Result<Self> {
        let plugin: Self = json::read(&config, "")?.value;
        let program = &plugin.program;
        let is_bare = !program.is_empty() && !program.contains(['/', '\0']);
        ensure!(is_bare, "type: {program:?} is not the name of a file");
        let Value::Object(config) = config else {
            bail!("expected an object, found {config}");
        };
        Ok(Self { config, ..plugin })
    }

    /// Returns the plugin's standard input: its own configuration with the network's name and
    /// version, and with `keys`.
    pub fn request(&self, network: &Conflist, keys: Map<String, Value>) -> Vec<u8> {
        let mut request = self.config.clone();
        request.insert("name".into(), json!(network.name.as_str()));
        request.insert("cniVersion".into(), json!(network.version.as_str()));
        request.extend(keys);
        Value::Object(request).to_string().into_bytes()
    }
}

impl Conflist {
    /// Returns the plugins of the list, and those to which `flannel` delegates.
    pub fn all_plugins(&self) -> Vec<PluginConfig> {
        let delegates = self.plugins.iter().filter_map(PluginConfig::delegate);
        self.plugins.iter().cloned().chain(delegates).collect()
    }

    /// Returns the first list of the network `name` in the files of `directory`. Reads first
    /// `*.conflist`, then `*.conf` together with `*.json`, both groups sorted by name.
    ///
    /// Reports an invalid file on standard error and skips it.
    ///
    /// # Errors
    /// The directory cannot be read or is missing, or no file in it has this network.
    pub fn find(directory: &Path, name: &str) -> anyhow::Result<Self> {
        let mut others = Vec::new();
        for path in candidates(directory)? {
            let read = cni::files::read(&path).map_err(Into::into);
            let whole = read.and_then(|bytes| parts::with_parts(bytes, directory));
            match whole.and_then(Self::parse) {
                Ok(list) if list.name.as_str() == name => return Ok(list),
                Ok(list) => others.push(list.name.to_string()),
                Err(error) => note!("{}: {error:#}", path.display()),
            }
        }
        let others = match others.as_slice() {
            [] => "it is missing, or has none; NETCONFPATH names another directory".to_owned(),
            names => format!("only {}", names.join(", ")),
        };
        bail!("no network {name:?} in {}: {others}", directory.display())
    }

    /// Parses a list. Converts the configuration of a single plugin to a list of one plugin.
    ///
    /// # Errors
    /// The document is not a valid list.
    pub fn parse(bytes: Vec<u8>) -> anyhow::Result<Self> {
        let document: Value = serde_json::from_slice(&bytes).context("decode")?;
        let raw: RawConflist = json::read(&document, "")?.value;
        let Some(plugins) = raw.plugins else {
            let (name, version) = (raw.name, raw.cni_version);
            let list = json!({"name": name, "cniVersion": version, "plugins": [document]});
            return Self::parse(serde_json::to_vec(&list)?);
        };
        ensure!(!plugins.is_empty(), "plugins: the list is empty");
        let plugins = plugins.into_iter().enumerate();
        let plugins = plugins.map(|(index, config)| {
            PluginConfig::parse(config).with_context(|| format!("plugins[{index}]"))
        });
        Ok(Self {
            name: raw.name.parse().context("name")?,
            version: newest(&raw.cni_version, &raw.cni_versions)?,
            disable_check: switch(raw.disable_check.as_ref()).context("disableCheck")?,
            disable_gc: switch(raw.disable_gc.as_ref()).context("disableGC")?,
            plugins: plugins.collect::<anyhow::Result<_>>()?,
            bytes,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawConflist {
    name: String,
    #[serde(default)]
    cni_version: String,
    #[serde(default)]
    cni_versions: Vec<String>,
    disable_check: Option<Value>,
    #[serde(rename = "disableGC")]
    disable_gc: Option<Value>,
    /// Absent in a single plugin's configuration.
    plugins: Option<Vec<Value>>,
}

/// Reads the names of capabilities whose value is `true`.
fn declared<'de, D: Deserializer<'de>>(capabilities: D) -> Result<Vec<String>, D::Error> {
    let capabilities = BTreeMap::<String, bool>::deserialize(capabilities)?;
    let declared = capabilities.into_iter().filter(|(_, is_on)| *is_on);
    Ok(declared.map(|(name, _)| name).collect())
}

/// Returns the highest supported version in the keys `cniVersion` (`single`) and `cniVersions`
/// (`several`). If `cniVersions` is not empty, ignores unknown versions in both keys, because the
/// list may also be written for newer runtimes.
fn newest(single: &str, several: &[String]) -> anyhow::Result<SpecVersion> {
    if several.is_empty() {
        return single.parse().context("cniVersion");
    }
    let mut newest = None;
    for text in several.iter().map(String::as_str).chain([single]) {
        let is_numbers = text.split('.').all(|part| part.parse::<u32>().is_ok());
        match text.parse::<SpecVersion>() {
            Ok(version) => newest = newest.max(Some(version)),
            Err(_) if is_numbers => {}
            Err(error) => return Err(error).context("cniVersions"),
        }
    }
    let known = || {
        let known = SpecVersion::list(SpecVersion::ALL);
        format!("cniVersions: none of these versions is known; known are {known}")
    };
    newest.with_context(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(document: &Value) -> anyhow::Result<Conflist> {
        Conflist::parse(document.to_string().into_bytes())
    }

    fn refusal(document: &Value) -> String {
        format!("{:#}", parse(document).unwrap_err())
    }

    #[test]
    fn single_plugin_becomes_a_list_of_one() {
        let single = json!({"name": "pods", "cniVersion": "0.4.0", "type": "bridge", "mtu": 1400});
        let list = parse(&single).unwrap();
        assert_eq!(list.version, SpecVersion::V0_4_0);
        let request = list.plugins[0].request(&list, Map::new());
        assert_eq!(serde_json::from_slice::<Value>(&request).unwrap(), single);
        let cached: Value = serde_json::from_slice(&list.bytes).unwrap();
        assert_eq!(cached["plugins"][0], single);
    }

    #[test]
    fn highest_version_wins_and_unknown_later_ones_are_passed_over() {
        let version = |single: &str, several: Value| {
            let plugins = json!([{"type": "bridge"}]);
            parse(
                &json!({"name": "pods", "cniVersion": single, "cniVersions": several,
                "plugins": plugins}),
            )
            .map(|list| list.version)
        };
        let cases = [
            (
                "1.0.0",
                json!(["0.3.1", "1.1.0", "9.9.9"]),
                Some(SpecVersion::V1_1_0),
            ),
            ("1.0.0", json!(["0.3.1"]), Some(SpecVersion::V1_0_0)),
            ("", json!(["0.3.1"]), Some(SpecVersion::V0_3_1)),
            ("0.4.0", json!([]), Some(SpecVersion::V0_4_0)),
            ("", json!([]), Some(SpecVersion::V0_1_0)),
            ("1.0", json!([]), None),
            ("1.0.0", json!(["one"]), None),
        ];
        for (single, several, expected) in cases {
            let found = version(single, several.clone()).ok();
            assert_eq!(found, expected, "{single:?} {several}");
        }
    }

    #[test]
    fn capabilities_that_are_off_are_not_declared() {
        let plugin =
            json!({"type": "portmap", "Capabilities": {"portMappings": true, "mac": false}});
        let list = parse(&json!({"name": "pods", "plugins": [plugin]})).unwrap();
        assert_eq!(list.plugins[0].capabilities, ["portMappings"]);
    }

    #[test]
    fn refusals_name_the_key() {
        let list = |plugins: Value| json!({"name": "pods", "plugins": plugins});
        for (document, key) in [
            (list(json!([])), "plugins: "),
            (list(json!([{}])), "plugins[0]: type: "),
            (list(json!([{"type": "../sh"}])), "plugins[0]: type: "),
            (list(json!([{"type": "a"}, 1])), "plugins[1]: "),
            (
                json!({"plugins": [{"type": "a"}]}),
                "configuration: missing field `name`",
            ),
            (
                json!({"name": "../a", "plugins": [{"type": "a"}]}),
                "name: ",
            ),
            (
                json!({"name": "a", "plugins": [{"type": "a"}], "disableCheck": 1}),
                "disableCheck: ",
            ),
        ] {
            let refusal = refusal(&document);
            assert!(refusal.starts_with(key), "{refusal}");
        }
    }

    #[test]
    fn lists_come_before_single_plugins_and_broken_files_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(directory.path().join(file), text);
        write("00-broken.conflist", "{").unwrap();
        write("05-old.conf", r#"{"name": "pods", "type": "old"}"#).unwrap();
        write(
            "10-new.conflist",
            r#"{"name": "pods", "plugins": [{"type": "new"}]}"#,
        )
        .unwrap();
        write(
            "20-later.conflist",
            r#"{"name": "pods", "plugins": [{"type": "later"}]}"#,
        )
        .unwrap();
        write("30-old.json", r#"{"name": "single", "type": "old"}"#).unwrap();
        let program = |name: &str| {
            let list = Conflist::find(directory.path(), name);
            list.map(|list| list.plugins[0].program.clone())
        };
        assert_eq!(program("pods").unwrap(), "new");
        assert_eq!(program("single").unwrap(), "old");
        let error = program("pod").unwrap_err().to_string();
        assert!(error.ends_with("only pods, pods, pods, single"), "{error}");
    }
}
