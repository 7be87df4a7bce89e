//! Attachments that libcni has cached, and whose leases another daemon may have kept.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cni::{Attachment, CniArgs, SpecVersion, files, json, result};
use ipnetwork::Ipv4Network;
use serde::Deserialize;
use serde_json::Value;

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

/// Returns the records, and the addresses, of all cached attachments with leases of a daemon on this
/// daemon's socket. Other files are no error: the directories are libcni's.
pub(crate) fn cached(flags: &Flags) -> Vec<(Record, Ipv4Network)> {
    let directories = DIRECTORIES.iter().map(|it| flags.on_host(Path::new(it)));
    let entries = directories.flat_map(fs::read_dir).flatten().flatten();
    let texts = entries.filter_map(|it| files::read(&it.path()).ok());
    let found = texts.filter_map(|it| read(&it).ok().flatten());
    let ours = found.filter(|(socket, ..)| flags.on_host(socket) == flags.socket);
    let records = ours.map(|(_, asked, lease)| {
        let address = lease.address;
        (Record::foreign(flags.here(asked), lease), address)
    });
    records.collect()
}

/// Reads a cached attachment: the daemon's socket, what was asked for, and the lease. Returns `None`
/// if the network has another IPAM plugin.
pub(crate) fn read(bytes: &[u8]) -> anyhow::Result<Option<(PathBuf, Asked, Lease)>> {
    let cached: Cached = serde_json::from_slice(bytes)?;
    let network: Value = serde_json::from_slice(&BASE64_STANDARD.decode(&cached.config)?)?;
    let list = network.get("plugins").and_then(Value::as_array);
    let plugins = list.map_or(std::slice::from_ref(&network), Vec::as_slice);
    let mut sections = plugins.iter().filter_map(|it| it.get("ipam"));
    let Some(section) = sections.find(|it| it.get("type").is_some_and(|it| it == PLUGIN.name))
    else {
        return Ok(None);
    };
    let args = cached.cni_args.unwrap_or_default().into_iter();
    let args: Vec<_> = args.map(|(key, value)| format!("{key}={value}")).collect();
    let args = CniArgs::parse(&args.join(";"))?;
    let config = Config::new(&json::read(section, "ipam")?.value, &args)?;
    let result = result::read(cached.result, SpecVersion::CURRENT, "result")?;
    let attachment = Attachment {
        network: cached.network_name.parse()?,
        container: cached.container_id.parse()?,
        interface: cached.if_name.parse()?,
    };
    let sandbox = result.in_sandbox(&attachment.interface);
    let sandbox = sandbox.and_then(|(_, it)| it.sandbox.as_ref());
    let netns = sandbox.context("the result names no sandbox")?.into();
    let lease = Lease::of_result(&result)?;
    let socket = config.socket.clone();
    Ok(Some((socket, Asked::new(attachment, netns, config), lease)))
}

/// Directories of libcni's cache: that of runtimes, and that of Multus.
const DIRECTORIES: [&str; 2] = ["/var/lib/cni/results", "/var/lib/cni/multus/results"];
