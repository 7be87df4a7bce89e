//! Attachments in the cache of runtimes, and leases.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context as _;
use cni::{Attachment, SpecVersion};
use host_local::{Content, DEFAULT_DATA_DIR, Holder};
use ipnetwork::IpNetwork;
use runtime::{Cache, Conflist, Directories, Entry, may_exist};
use serde_json::Value;

use super::configuration::Configuration;
use super::keys;

/// An attachment in the cache of a runtime.
#[derive(Debug)]
pub struct Attached {
    /// Network, container and interface.
    pub attachment: Attachment,
    /// The cached entry.
    pub entry: Entry,
    /// The sandbox exists, or its state is unknown.
    pub is_alive: bool,
    /// Time of the entry.
    pub since: Option<SystemTime>,
}

/// A leased address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The network: the name of the file's directory.
    pub network: String,
    /// The address: the name of the file.
    pub address: IpAddr,
    /// The holder; `None` if no DEL can match it.
    pub holder: Option<Holder>,
    /// The file.
    pub path: PathBuf,
    /// Time of the last change.
    pub since: Option<SystemTime>,
}

impl Attached {
    /// Returns the addresses that ADD reported.
    pub fn addresses(&self) -> Vec<IpNetwork> {
        let result = self.entry.result(SpecVersion::CURRENT).ok().flatten();
        let result = result.unwrap_or_default();
        let ips = result.get("ips").and_then(Value::as_array);
        let texts = ips
            .into_iter()
            .flatten()
            .filter_map(|it| it.get("address")?.as_str());
        texts.filter_map(|it| it.parse().ok()).collect()
    }

    /// Returns the names of the host links that ADD reported.
    pub fn host_links(&self) -> Vec<String> {
        let result = self.entry.result(SpecVersion::CURRENT).ok().flatten();
        let result = result.unwrap_or_default();
        let interfaces = result.get("interfaces").and_then(Value::as_array);
        let text = |it: &Value, key| it.get(key).and_then(Value::as_str).map(str::to_owned);
        let of_host = interfaces.into_iter().flatten().filter(|it| {
            let sandbox = text(it, "sandbox");
            sandbox.is_none_or(|it| it.is_empty())
        });
        of_host.filter_map(|it| text(it, "name")).collect()
    }

    /// Returns the gateway of the default route of this family that ADD reported.
    pub fn default_gateway(&self, is_ipv4: bool) -> Option<IpAddr> {
        let result = self.entry.result(SpecVersion::CURRENT).ok().flatten()?;
        let of_family = |text: &str| {
            let address: IpAddr = text.split('/').next()?.parse().ok()?;
            (address.is_ipv4() == is_ipv4).then_some(address)
        };
        let items = |key| {
            result
                .get(key)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
        };
        let text = |it: &'_ Value, key| it.get(key).and_then(Value::as_str).and_then(of_family);
        let is_default = |it: &&Value| {
            let destination = it.get("dst").and_then(Value::as_str);
            let destination = destination.and_then(|it| it.parse::<IpNetwork>().ok());
            destination.is_some_and(|it| it.prefix() == 0 && it.is_ipv4() == is_ipv4)
        };
        let route = items("routes").find(is_default)?;
        let of_address = || items("ips").find_map(|it| text(it, "gateway"));
        text(route, "gw").or_else(of_address)
    }

    /// Returns the configuration list of its ADD, or the current list of its network if the entry has none.
    pub fn network(&self, configuration: &Configuration) -> Option<Conflist> {
        let now = || configuration.network(self.attachment.network.as_str());
        let then = self.entry.network(&configuration.directory).ok().flatten();
        then.or_else(|| now().map(|it| it.list.clone()))
    }
}

impl Lease {
    /// Returns the holder, or `None` for a lease without holder. The interface is eth0 if an old version of host-local
    /// wrote none.
    pub fn attachment(&self) -> Option<Attachment> {
        let Holder {
            container,
            interface,
        } = self.holder.clone()?;
        Some(Attachment {
            network: self.network.parse().ok()?,
            container,
            interface: interface.or_else(|| "eth0".parse().ok())?,
        })
    }

    /// Returns the tag that links and elements of the holder have; `None` if the lease names no interface.
    pub fn owner(&self) -> Option<String> {
        self.holder.as_ref()?.interface.as_ref()?;
        Some(self.attachment()?.owner())
    }

    /// Returns whether the lease is below this `dataDir`.
    pub fn is_in(&self, data_dir: &Path) -> bool {
        self.path.parent().and_then(Path::parent) == Some(data_dir)
    }

    /// Returns whether `attachment` is the holder.
    pub fn is_of(&self, attachment: &Attachment) -> bool {
        self.network == attachment.network.as_str()
            && self.holder.as_ref().is_some_and(|holder| {
                let mut interface = holder.interface.iter();
                holder.container == attachment.container
                    && interface.all(|it| *it == attachment.interface)
            })
    }
}

pub(super) fn attached(directories: &Directories) -> anyhow::Result<Vec<Attached>> {
    let cache = Cache::new(&directories.cache);
    // `cnitool reload` reports invalid files.
    let entries = cache.entries()?.into_iter().filter_map(Result::ok);
    let attached = entries.map(|(attachment, entry)| Attached {
        is_alive: may_exist(entry.netns()),
        since: cache.written(&attachment),
        attachment,
        entry,
    });
    Ok(attached.collect())
}

/// Returns the directories in which host-local keeps leases: those of all networks, and the default.
pub fn data_directories(configuration: &Configuration) -> BTreeSet<PathBuf> {
    let configured = configuration.sources();
    let configured = configured.filter_map(|source| keys::data_dir(source.plugin));
    let all = configured.chain([PathBuf::from(DEFAULT_DATA_DIR)]);
    all.collect()
}

/// Returns all leases below these directories.
///
/// # Errors
/// A directory cannot be read.
pub fn leases(directories: &BTreeSet<PathBuf>) -> anyhow::Result<Vec<Lease>> {
    let mut leases = Vec::new();
    for directory in directories {
        for network in entries(directory)? {
            if network.is_dir() && name(&network).is_some_and(|it| !it.starts_with('.')) {
                leases.extend(entries(&network)?.iter().filter_map(|it| lease(it)));
            }
        }
    }
    Ok(leases)
}

fn lease(path: &Path) -> Option<Lease> {
    let address = name(path)?.parse().ok()?;
    let network = name(path.parent()?)?.to_owned();
    let metadata = fs::symlink_metadata(path).ok()?;
    let holder = match Content::read(path) {
        Ok(Some(Content::Holder(holder))) => Some(holder),
        _ => None,
    };
    Some(Lease {
        network,
        address,
        holder,
        path: path.to_owned(),
        since: metadata.modified().ok(),
    })
}

/// Returns the paths in `directory`, sorted by name; none if it does not exist.
fn entries(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let reading = || format!("read {}", directory.display());
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(directory).with_context(reading)?;
    let paths = entries.map(|entry| entry.map(|it| it.path()));
    let mut paths: Vec<_> = paths.collect::<Result<_, _>>().with_context(reading)?;
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leases_are_read_from_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let pods = directory.path().join("pods");
        fs::create_dir_all(directory.path().join(".host-local/pods")).unwrap();
        fs::create_dir(&pods).unwrap();
        for (file, content) in [
            ("10.1.0.2", "c1\r\neth0"),
            ("fd00:1::2", ""),
            ("last_reserved_ip.0", "10.1.0.2"),
            ("lock", ""),
        ] {
            fs::write(pods.join(file), content).unwrap();
        }
        let paths = entries(&pods).unwrap();
        let leases: Vec<_> = paths.iter().filter_map(|it| lease(it)).collect();
        assert_eq!(leases.len(), 2);
        assert_eq!(leases[0].owner().as_deref(), Some("cni:pods/c1/eth0"));
        assert_eq!(leases[1].holder, None);
    }
}
