//! The network configuration of this node, from a template.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use cni::files::if_present;
use ipnetwork::IpNetwork;
use runtime::{Conflist as Parsed, candidates};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::saved;

/// The network configuration that the agent writes.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Conflist {
    /// The file's name in the directory of network configurations.
    #[serde(deserialize_with = "file_name")]
    pub file: String,
    /// The content with placeholders: texts that begin with `$`.
    pub template: Value,
}

impl Conflist {
    /// Checks the template.
    ///
    /// # Errors
    /// It has an unknown placeholder, or is no valid conflist.
    pub fn check(&self) -> anyhow::Result<()> {
        let sample: IpNetwork = "192.0.2.0/24".parse()?;
        let filled = self.filled(&[sample], None);
        if let Some(unknown) = find_text(&filled, |it| it.starts_with('$')) {
            bail!(
                "the template has the unknown placeholder {unknown:?}; known are {}",
                KNOWN.join(", ")
            );
        }
        Parsed::parse(serde_json::to_vec(&filled)?).context("template")?;
        Ok(())
    }

    /// Returns whether the agent has written this content: it is of the template's network.
    fn has_written(&self, content: Vec<u8>) -> bool {
        let name = self.template.get("name").and_then(Value::as_str);
        let parsed = Parsed::parse(content).ok();
        parsed.is_some_and(|it| Some(it.name.as_str()) == name)
    }

    /// Returns the template with the values of a node in place of the placeholders.
    pub fn filled(&self, pod_cidrs: &[IpNetwork], mtu: Option<u32>) -> Value {
        let ranges = pod_cidrs.iter().map(|it| json!([{"subnet": it}]));
        let families = [("0.0.0.0/0", true), ("::/0", false)];
        let families = families
            .iter()
            .filter(|(_, is_ipv4)| pod_cidrs.iter().any(|it| it.is_ipv4() == *is_ipv4));
        let values = [
            (MTU, mtu.unwrap_or_default().into()),
            (POD_RANGES, ranges.collect()),
            (
                DEFAULT_ROUTES,
                families.map(|(dst, _)| json!({"dst": dst})).collect(),
            ),
        ];
        let mut filled = self.template.clone();
        fill(&mut filled, &values);
        filled
    }
}

/// Writes the filled template to the directory of network configurations, unless it is there
/// already.
///
/// # Errors
/// The file has another network, cannot be written, or is not the one that runtimes use.
pub(super) fn write(directory: &Path, conflist: &Conflist, filled: &Value) -> anyhow::Result<()> {
    let path = directory.join(&conflist.file);
    let mut content = serde_json::to_vec_pretty(filled)?;
    content.push(b'\n');
    let present = read(&path)?;
    if present.as_ref() != Some(&content) {
        ensure!(
            present.is_none_or(|it| conflist.has_written(it)),
            "{} has another network: move it away, or set another file in the key conflist",
            path.display()
        );
        saved::replace(&path, &content, 0o644)?;
    }
    let used = candidates(directory)?
        .into_iter()
        .min_by_key(|it| it.file_name().map(OsStr::to_owned));
    if let Some(used) = used.filter(|it| *it != path) {
        bail!(
            "{} sorts before {}, so containerd and CRI-O use it: move it away",
            used.display(),
            conflist.file
        );
    }
    Ok(())
}

/// Removes the network configuration from the directory, if the agent has written it. Returns its path.
///
/// # Errors
/// The file cannot be read or removed.
pub(super) fn remove(directory: &Path, conflist: &Conflist) -> anyhow::Result<Option<PathBuf>> {
    let path = directory.join(&conflist.file);
    saved::remove_unfinished(&path)?;
    if !read(&path)?.is_some_and(|it| conflist.has_written(it)) {
        return Ok(None);
    }
    fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    Ok(Some(path))
}

fn read(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    let present = if_present(cni::files::read(path));
    present.with_context(|| format!("read {}", path.display()))
}

/// Replaces the placeholders in `value` and below by their values.
fn fill(value: &mut Value, values: &[(&str, Value)]) {
    match value {
        Value::String(text) => {
            if let Some((_, known)) = values.iter().find(|(name, _)| text == name) {
                *value = known.clone();
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|it| fill(it, values)),
        Value::Object(object) => object.values_mut().for_each(|it| fill(it, values)),
        _ => {}
    }
}

/// Returns the first text in `value` or below that `is_it` accepts.
fn find_text(value: &Value, is_it: fn(&str) -> bool) -> Option<&str> {
    match value {
        Value::String(text) => is_it(text).then_some(text),
        Value::Array(list) => list.iter().find_map(|it| find_text(it, is_it)),
        Value::Object(object) => object.values().find_map(|it| find_text(it, is_it)),
        _ => None,
    }
}

fn file_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    let path = Path::new(&name);
    let is_name = path.file_name() == Some(OsStr::new(&name));
    if is_name && path.extension() == Some(OsStr::new("conflist")) {
        return Ok(name);
    }
    Err(serde::de::Error::custom(format_args!(
        "cluster.conflist.file {name:?}: expected a file name that ends in .conflist"
    )))
}

/// The ranges of host-local: one for each pod CIDR of the node.
const POD_RANGES: &str = "$podRanges";
/// A default route for each family of the pod CIDRs.
const DEFAULT_ROUTES: &str = "$defaultRoutes";
/// The MTU of the tunnels or of the WireGuard device; without them 0, by which plugins choose that of
/// the uplink.
const MTU: &str = "$mtu";
const KNOWN: [&str; 3] = [POD_RANGES, DEFAULT_ROUTES, MTU];
