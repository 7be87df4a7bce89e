//! What the client and the daemon send each other: one line of JSON for the request, and one for the
//! answer. While the daemon works, it sends empty lines, so the client sees that it lives.

use std::iter;
use std::path::PathBuf;
use std::time::Duration;

use cni::Attachment;
use serde::{Deserialize, Serialize};

use crate::lease::Lease;
use crate::options::Options;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Leases an address, or returns the lease that the attachment has.
    Add(Asked),
    Del(Names),
    /// Returns the lease of an attachment. Without one, confirms the lease that another daemon got.
    Check(Asked, Option<Lease>),
    Status,
    /// Releases the leases of a network, except for those of the listed containers and interfaces.
    Gc(String, Vec<(String, String)>),
}

/// An attachment that needs a lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// The attachment.
    pub names: Names,
    /// Path of the sandbox.
    pub netns: PathBuf,
    /// Options for the server.
    pub options: Options,
    /// Metric of the routes; 0 for none.
    pub priority: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Names {
    network: String,
    container: String,
    interface: String,
}

impl Names {
    pub(crate) fn of(attachment: &Attachment) -> Self {
        Self {
            network: attachment.network.to_string(),
            container: attachment.container.to_string(),
            interface: attachment.interface.to_string(),
        }
    }

    /// Returns the attachment.
    pub(crate) fn attachment(&self) -> anyhow::Result<Attachment> {
        Ok(Attachment {
            network: self.network.parse()?,
            container: self.container.parse()?,
            interface: self.interface.parse()?,
        })
    }

    /// Returns the client identifier: type 0 and `CONTAINER/NETWORK/INTERFACE`, of which the Go
    /// plugin takes 254 bytes, too. So a server knows the client again after a change of daemons.
    pub(crate) fn client_id(&self) -> Vec<u8> {
        let name = format!("{}/{}/{}", self.container, self.network, self.interface);
        iter::once(0).chain(name.bytes().take(254)).collect()
    }
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
