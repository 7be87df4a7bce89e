//! Attachments that libcni has cached, and whose leases another daemon may have kept.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cni::{Attachment, CniArgs, Document, Network, SearchPath, SpecVersion, files, result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::flags::Flags;
use crate::PLUGIN;
use crate::config::Config;
use crate::lease::Lease;
use crate::record::Record;
use crate::wire::Asked;

/// A cached attachment: `cachedInfo` in libcni/api.go.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cached {
    container_id: String,
    config: String,
    if_name: String,
    network_name: String,
    #[serde(default)]
    cni_args: Option<Vec<(String, String)>>,
    result: Value,
}

/// Returns the records of all cached attachments with leases of a daemon on this daemon's socket.
/// Other files are no error: the directories are libcni's.
pub(crate) fn cached(flags: &Flags) -> Vec<Record> {
    let directories = DIRECTORIES.map(|it| format!("{}{it}", flags.prefix));
    let entries = directories.iter().flat_map(fs::read_dir).flatten();
    let texts = entries
        .flatten()
        .filter_map(|it| files::read(&it.path()).ok());
    let found = texts.filter_map(|it| read(&it).ok().flatten());
    let is_ours =
        |socket: &Path| Path::new(&format!("{}{}", flags.prefix, socket.display())) == flags.socket;
    let ours = found.filter(|(socket, _)| is_ours(socket));
    ours.map(|(_, record)| record).collect()
}

/// Reads a cached attachment. Returns the daemon's socket and the record. Returns `None` if the
/// network has another IPAM plugin.
pub(crate) fn read(bytes: &[u8]) -> anyhow::Result<Option<(PathBuf, Record)>> {
    let cached: Cached = serde_json::from_slice(bytes)?;
    let Some(network) = network(&cached)? else {
        return Ok(None);
    };
    let args = cached.cni_args.unwrap_or_default().into_iter();
    let args: Vec<_> = args.map(|(key, value)| format!("{key}={value}")).collect();
    let config = Config::parse(&network, &CniArgs::parse(&args.join(";"))?)?;
    let result = result::read(cached.result, network.version, "result")?;
    let interface = cached.if_name.parse()?;
    let sandbox = result.in_sandbox(&interface);
    let sandbox = sandbox.and_then(|(_, it)| it.sandbox.clone());
    let asked = Asked {
        attachment: Attachment {
            network: network.name.clone(),
            container: cached.container_id.parse()?,
            interface,
        },
        netns: sandbox.context("the result names no sandbox")?.into(),
        options: config.options,
        priority: config.priority,
    };
    let record = Record {
        lease: Some(Lease::of_result(&result)?),
        is_answered: true,
        ..Record::new(asked)
    };
    Ok(Some((config.socket, record)))
}

/// Returns the configuration of the plugin that calls `dhcp`, if the network has one.
fn network(cached: &Cached) -> anyhow::Result<Option<Network>> {
    let config = BASE64_STANDARD.decode(&cached.config)?;
    let config: Map<String, Value> = serde_json::from_slice(&config)?;
    let list = config.get("plugins").and_then(Value::as_array);
    let mut plugins = list.map_or_else(|| vec![Value::Object(config.clone())], Clone::clone);
    let calls_us = |it: &Value| it.pointer("/ipam/type").is_some_and(|it| it == PLUGIN.name);
    plugins.retain(calls_us);
    let Some(Value::Object(mut plugin)) = plugins.pop() else {
        return Ok(None);
    };
    let version = config.get("cniVersion").cloned();
    let version = version.unwrap_or_else(|| json!("0.1.0"));
    plugin.insert("name".to_owned(), json!(cached.network_name));
    plugin.insert("cniVersion".to_owned(), version);
    let document = Document::decode(Value::Object(plugin).to_string().into_bytes())?;
    let network = Network::parse(document, SearchPath::default(), SpecVersion::ALL)?;
    Ok(Some(network))
}

/// Directories of libcni's cache: that of runtimes, and that of Multus.
const DIRECTORIES: [&str; 2] = ["/var/lib/cni/results", "/var/lib/cni/multus/results"];
