//! What the client and the daemon send each other: one line of JSON for the request, and one for the
//! answer. While the daemon works, it sends empty lines, so the client sees that it lives.

use std::path::PathBuf;
use std::time::Duration;

use cni::Attachment;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Options};
use crate::lease::Lease;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Leases an address, or returns the lease that the attachment has.
    Add(Asked),
    /// Releases the lease of the attachment with this tag.
    Del(String),
    /// Returns the lease of an attachment. Without one, confirms the lease that another daemon got.
    Check(Asked, Option<Lease>),
    Status,
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

impl Asked {
    /// Returns the attachment in the sandbox at `netns`, with the options of `config`.
    pub(crate) fn new(attachment: Attachment, netns: PathBuf, config: Config) -> Self {
        Self {
            attachment,
            netns,
            options: config.options,
            priority: config.priority,
        }
    }
}

/// The lease, if the request is about one, or why the daemon failed.
pub(crate) type Answer = Result<Option<Lease>, String>;

/// Size limit of a request or an answer in bytes.
pub(crate) const LARGEST: u64 = 1 << 20;

/// Time between two empty lines of a daemon that works.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// Longest silence of the other side. On a busy node, it may stand still for many seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
