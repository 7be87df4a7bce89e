//! Finds out in which network namespaces processes run.
//!
//! A process in a container may see only some of the node's processes. It sees those of all pods if
//! it sees the container runtime, which is their ancestor. The kernel tells a client the process ID
//! of the runtime that listens at a socket, if the client's pid namespace shows that process.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use netlink::Connection;
use netns::tasks;
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};

/// Usual paths of the sockets of containerd and of CRI-O, in this order.
pub const RUNTIME_SOCKETS: [&str; 2] = ["/run/containerd/containerd.sock", "/run/crio/crio.sock"];

/// Returns the network namespaces in which processes run, each by the number (nsid) that the
/// namespace of this process uses for it. Returns `None` if this process does not see the runtimes
/// at `sockets`, so that it may not see a pod's process either, if `sockets` is empty, or if the
/// processes cannot be read.
pub(super) fn occupied(sockets: &[PathBuf]) -> Option<BTreeSet<i32>> {
    let tasks = tasks().ok()?;
    let is_seen = |socket: &PathBuf| listener(socket).is_ok_and(|it| tasks.contains(&it));
    if sockets.is_empty() || !sockets.iter().all(is_seen) {
        return None;
    }
    let tasks: Vec<_> = tasks.into_iter().collect();
    Connection::open().ok()?.namespaces_of(&tasks).ok()
}

/// Returns the process ID of the process that listens at the socket: 0 if this process does not see
/// it.
fn listener(path: &Path) -> Result<u32, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let client = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(client.as_raw_fd(), &UnixAddr::new(path)?)?;
    let peer = getsockopt(&client, PeerCredentials)?;
    Ok(u32::try_from(peer.pid()).unwrap_or(0))
}
