//! Reads the attachments in the cache of runtimes, and the leases of host-local.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cni::Attachment;
use host_local::{Content, DEFAULT_DATA_DIR, Holder};
use ipnetwork::IpNetwork;
use netns::Netns;
use runtime::{Cache, Conflist, Entry, may_exist, paths_in};
use tc::{CountedLimit, End};

use super::configuration::Configuration;
use super::lookup::lease_directories;

/// An attachment that a runtime has in its cache.
#[derive(Debug)]
pub struct Attached {
    /// Network, container and interface.
    pub attachment: Attachment,
    /// What the runtime cached at ADD: configuration, arguments and result.
    pub entry: Entry,
    /// Whether the sandbox exists; true if this process cannot find out.
    pub is_alive: bool,
    /// When the runtime last wrote the cached entry; `None` if unknown.
    pub since: Option<SystemTime>,
}

/// An address that host-local leased. The lease is a file in the network's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Name of the network: the name of the lease file's directory.
    pub network: String,
    /// The leased address: the name of the lease file.
    pub address: IpAddr,
    /// Container and interface that hold the lease. `None` if the lease file cannot be read or
    /// contains no valid container ID. No DEL can release such a lease.
    pub holder: Option<Holder>,
    /// Path of the lease file.
    pub path: PathBuf,
    /// When the lease file last changed; `None` if unknown.
    pub since: Option<SystemTime>,
}

impl Attached {
    /// Returns the addresses that ADD reported.
    pub fn addresses(&self) -> Vec<IpNetwork> {
        let ips = self.entry.reported().ips;
        ips.iter().map(|it| it.address).collect()
    }

    /// Returns the gateway of the default route that ADD reported for this IP version. If the route
    /// has no gateway, returns the gateway of a reported address. Returns `None` if ADD reported no
    /// such route, or no gateway.
    pub fn default_gateway(&self, is_ipv4: bool) -> Option<IpAddr> {
        let result = self.entry.reported();
        let mut routes = result.routes.iter();
        let route = routes.find(|it| it.dst.prefix() == 0 && it.dst.is_ipv4() == is_ipv4)?;
        let mut gateways = result.ips.iter().filter_map(|it| it.gateway);
        let of_address = gateways.find(|it| it.is_ipv4() == is_ipv4);
        route.gw.or(of_address)
    }

    /// Returns the configuration list that ADD used for the attachment. If the cached entry
    /// contains no valid list, returns the current list of the network with the same name; `None`
    /// if no such network is configured.
    pub fn network(&self, configuration: &Configuration) -> Option<Conflist> {
        let then = self.entry.network(&configuration.directory).ok().flatten();
        then.or_else(|| {
            let now = configuration.network(self.attachment.network.as_str());
            now.map(|it| it.list.clone())
        })
    }
}

impl Lease {
    /// Returns the attachment that holds the lease; `None` if the lease has no holder or its
    /// network has no valid name. Old versions of the Go plugin `host-local` wrote no interface
    /// into the lease file; for such a lease, this function assumes eth0.
    pub fn attachment(&self) -> Option<Attachment> {
        let holder = self.holder.clone()?;
        Some(Attachment {
            network: self.network.parse().ok()?,
            container: holder.container,
            interface: holder.interface.or_else(|| "eth0".parse().ok())?,
        })
    }

    /// Returns whether `data_dir` directly contains the network's directory with the lease file.
    pub fn is_in(&self, data_dir: &Path) -> bool {
        self.path.parent().and_then(Path::parent) == Some(data_dir)
    }
}

/// Returns the attachments in the cache, and the number of invalid files in the cache. This
/// function does not return the names of these files; `cnitool reload` reports them.
pub(super) fn attached(cache: &Cache) -> anyhow::Result<(Vec<Attached>, usize)> {
    let entries = cache.entries()?;
    let files = entries.len();
    let valid = entries.into_iter().flatten();
    let attached = valid.map(|(attachment, entry)| Attached {
        is_alive: may_exist(entry.netns()),
        since: cache.written(&attachment),
        attachment,
        entry,
    });
    let attached: Vec<_> = attached.collect();
    let invalid = files.saturating_sub(attached.len());
    Ok((attached, invalid))
}

/// Returns the limits of what the sandboxes of live attachments send, by the attachment's tag. Leaves
/// out a sandbox that cannot be entered.
pub(super) fn egress_limits(attached: &[Attached]) -> BTreeMap<String, CountedLimit> {
    let alive = attached.iter().filter(|it| it.is_alive);
    let limits = alive.filter_map(|it| {
        let owner = it.attachment.owner();
        let limit = bandwidth::limits_egress(&owner).then(|| egress_limit(it))?;
        Some((owner, limit.ok()??))
    });
    limits.collect()
}

fn egress_limit(attached: &Attached) -> anyhow::Result<Option<CountedLimit>> {
    let namespace = Netns::open(attached.entry.netns())?;
    let sandbox = End::Container(&namespace).connect()?;
    let link = sandbox.link(attached.attachment.interface.as_str())?;
    Ok(tc::counted_limits(&sandbox)?.remove(&link.index))
}

/// Returns all directories in which host-local keeps leases: each `dataDir` that a network
/// configures, and the default one.
pub(super) fn data_directories(configuration: &Configuration) -> BTreeSet<PathBuf> {
    let networks = configuration.networks();
    let configured = networks.flat_map(|(_, it)| lease_directories(&it.list));
    configured.chain([DEFAULT_DATA_DIR.into()]).collect()
}

/// Returns all leases in `directories`. Each directory contains one directory of lease files for
/// each network.
///
/// # Errors
/// A directory exists and cannot be read.
pub(super) fn leases(directories: &BTreeSet<PathBuf>) -> anyhow::Result<Vec<Lease>> {
    let mut leases = Vec::new();
    for directory in directories {
        for network in paths_in(directory)? {
            if network.is_dir() && name(&network).is_some_and(|it| !it.starts_with('.')) {
                leases.extend(paths_in(&network)?.iter().filter_map(|it| lease(it)));
            }
        }
    }
    Ok(leases)
}

fn lease(path: &Path) -> Option<Lease> {
    let address = name(path)?.parse().ok()?;
    let network = name(path.parent()?)?.to_owned();
    let metadata = fs::symlink_metadata(path).ok()?;
    Some(Lease {
        network,
        address,
        holder: match Content::read(path) {
            Ok(Some(Content::Holder(holder))) => Some(holder),
            _ => None,
        },
        path: path.to_owned(),
        since: metadata.modified().ok(),
    })
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
        let paths = paths_in(&pods).unwrap();
        let leases: Vec<_> = paths.iter().filter_map(|it| lease(it)).collect();
        assert_eq!(leases.len(), 2);
        let holder = leases[0].attachment().unwrap();
        assert_eq!(holder.owner(), "cni:pods/c1/eth0");
        assert_eq!(leases[1].holder, None);
    }
}
