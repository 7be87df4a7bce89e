//! What the client and the daemon send each other: one line of JSON for the request, and one for the
//! answer. While the daemon works, it sends empty lines, so the client sees that it lives.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use cni::{Attachment, ContainerId, InterfaceName, NetworkName};
use serde::{Deserialize, Serialize};

use crate::config::Options;
use crate::lease::Lease;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Leases an address, or returns the lease that the attachment has.
    Add(Asked),
    Del(Attachment),
    /// Returns the lease of an attachment. Without one, confirms the lease that another daemon got.
    Check(Asked, Option<Lease>),
    Status,
    /// Releases the leases of a network, except for those of the listed containers and interfaces.
    Gc(NetworkName, HashSet<(ContainerId, InterfaceName)>),
}

/// An attachment that needs a lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// The attachment.
    #[serde(rename = "names")]
    pub attachment: Attachment,
    /// Path of the sandbox.
    pub netns: PathBuf,
    /// Options for the server.
    pub options: Options,
    /// Metric of the routes; 0 for none.
    pub priority: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Answer {
    Lease(Lease),
    Done,
    Failed(String),
}

/// Size limit of a request or an answer in bytes. A GC lists each attachment in some hundred bytes.
pub(crate) const LARGEST: u64 = 8 << 20;

/// Time between two empty lines of a daemon that works.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// Longest silence of the other side. On a busy node, it may stand still for many seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
