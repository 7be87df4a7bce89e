//! The sandbox for which an address is leased, and the request.

use std::fs;
use std::path::{Path, PathBuf};

use cni::AddRequest;
use cni::files::if_present;
use nix::sys::statfs::{NSFS_MAGIC, statfs};
use serde::{Deserialize, Serialize};

use crate::directory::Identity;

/// The network namespace for which an address was leased.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// `CNI_NETNS`.
    pub path: PathBuf,
    /// The namespace's file; `None` if it did not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    identity: Option<Identity>,
}

/// What a process sees of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The path leads to the namespace.
    Exists,
    /// The path leads to the namespace no more.
    Gone,
    /// The path may mean something else to this process than to the one that recorded it.
    Unknown,
}

/// What is at a path.
enum Found {
    Nothing,
    Namespace(Identity),
    OtherFile,
}

impl Sandbox {
    /// Returns the sandbox at `path`, as it is now.
    pub fn at(path: &Path) -> Self {
        let identity = fs::metadata(path).ok().map(|it| Identity::of(&it));
        Self {
            path: path.to_owned(),
            identity,
        }
    }

    /// Returns whether the sandbox exists. `own` is the sandbox of this process's request: it shows
    /// that the process sees the sandboxes in the same directory.
    pub(crate) fn presence(&self, own: Option<&Path>) -> Presence {
        let is_seen = own.is_some_and(|own| are_together(own, &self.path) && is_namespace(own));
        let is_of_process = self.path.starts_with(PROC);
        let has_parent = || self.path.parent().is_some_and(Path::exists);
        match find(&self.path) {
            Some(Found::Namespace(found)) if self.is(&found, is_of_process) => Presence::Exists,
            Some(Found::Namespace(_)) if is_seen || !is_of_process => Presence::Gone,
            Some(Found::Nothing) if is_seen || !is_of_process && has_parent() => Presence::Gone,
            Some(Found::OtherFile) if is_seen => Presence::Gone,
            _ => Presence::Unknown,
        }
    }

    /// Returns whether `found` is this namespace. The kernel uses inodes again, so the change time
    /// counts, too. It is constant for a mounted namespace only, not for `/proc/PID/ns/net`.
    fn is(&self, found: &Identity, is_of_process: bool) -> bool {
        let inode_is_same = |it: &Identity| is_of_process && it.inode == found.inode;
        let identity = self.identity.as_ref();
        identity.is_some_and(|it| it == found || inode_is_same(it))
    }
}

/// Returns whether a process that sees one path sees the other path, too: both are in the same
/// directory, or belong to processes.
fn are_together(one: &Path, other: &Path) -> bool {
    let place = |it: &Path| {
        let is_of_process = it.starts_with(PROC);
        let parent = || fs::canonicalize(it.parent()?).ok();
        is_of_process.then(|| PathBuf::from(PROC)).or_else(parent)
    };
    place(one).is_some_and(|it| place(other) == Some(it))
}

fn is_namespace(path: &Path) -> bool {
    matches!(find(path), Some(Found::Namespace(_)))
}

/// Returns what is at `path`; `None` if that cannot be found out.
fn find(path: &Path) -> Option<Found> {
    let Some(metadata) = if_present(fs::metadata(path)).ok()? else {
        return Some(Found::Nothing);
    };
    let file_system = statfs(path).ok()?.filesystem_type();
    Some(match file_system {
        NSFS_MAGIC => Found::Namespace(Identity::of(&metadata)),
        _ => Found::OtherFile,
    })
}

const PROC: &str = "/proc";

/// The request for which an address is leased.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// `type` of the configuration: the plugin that called this one.
    pub plugin: String,
    /// The bridge, if the plugin is `bridge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
}

impl Origin {
    /// Returns the origin of the leases of this request.
    pub(crate) fn of(request: &AddRequest) -> Self {
        // ADD does not need these keys of the calling plugin: a wrong type is no error.
        let caller = |key| request.network.key::<String>(key).unwrap_or_default();
        let (plugin, bridge) = (caller("type"), Some(caller("bridge")));
        let bridge = bridge.filter(|it| !it.is_empty());
        let bridge = bridge.unwrap_or_else(|| USUAL_BRIDGE.to_owned());
        Self {
            sandbox: Sandbox::at(&request.netns),
            bridge: (plugin == "bridge").then_some(bridge),
            plugin,
        }
    }
}

/// Default of the key `bridge` of the plugin `bridge`.
const USUAL_BRIDGE: &str = "cni0";
