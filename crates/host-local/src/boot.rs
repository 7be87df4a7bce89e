//! The identifiers of the machine's current boot.
//!
//! One identifier proves nothing: in a container, `/proc` shows the boot ID of the kernel, while a
//! machine such as a container of systemd-nspawn has its own. And an operator may delete files
//! below `/run`. A boot ended for certain only if both identifiers differ.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::LazyLock;

use cni::files::{boot_id, make_directory};
use cni::or_note;
use serde::{Deserialize, Serialize};

/// The identifiers of a boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The boot ID (random(4)).
    #[serde(rename = "boot")]
    pub id: String,
    /// The text of [`MARKER`]. `None` if the marker did not exist, or if this plugin did not know
    /// markers yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

impl Boot {
    /// Returns the identifiers as this process sees them at the first call.
    ///
    /// # Errors
    /// The boot ID cannot be read.
    pub fn current() -> anyhow::Result<Self> {
        Ok(Self {
            id: boot_id()?,
            run: RUN.clone(),
        })
    }

    /// Returns the identifiers that [`mark`] would leave, and changes nothing.
    ///
    /// # Errors
    /// The boot ID or a random UUID cannot be read.
    pub fn after_mark() -> anyhow::Result<Self> {
        let current = Self::current()?;
        let run = current.run.map_or_else(uuid, Ok)?;
        Ok(Self {
            run: Some(run),
            ..current
        })
    }

    /// Compares the markers of two boots; `None` if one of them is not known.
    pub fn has_run_of(&self, other: &Self) -> Option<bool> {
        Some(self.run.as_ref()? == other.run.as_ref()?)
    }
}

/// Creates [`MARKER`] if it is missing. Only ADD calls this function: DEL and GC may run in a
/// container that does not see the machine's `/run/cni`.
pub(crate) fn mark() {
    let create = || -> io::Result<()> {
        let parent = Path::new(MARKER).parent().unwrap_or(Path::new("/"));
        make_directory(parent, 0o755)?;
        match symlink(uuid()?, MARKER) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            created => created,
        }
    };
    if marker().is_none() {
        let created = create().map_err(|error| anyhow::anyhow!("create {MARKER}: {error}"));
        or_note(created, "leases may outlive the next reboot");
    }
}

fn marker() -> Option<String> {
    let target = fs::read_link(MARKER).ok()?;
    target.into_os_string().into_string().ok()
}

static RUN: LazyLock<Option<String>> = LazyLock::new(marker);

fn uuid() -> io::Result<String> {
    Ok(fs::read_to_string(UUID)?.trim().to_owned())
}

/// Each read returns another random UUID.
const UUID: &str = "/proc/sys/kernel/random/uuid";

/// The marker of a boot: a symbolic link below `/run`, whose text is a random UUID. A reboot
/// empties `/run`. It is a link because one system call reads it, and one creates it whole.
const MARKER: &str = "/run/cni/host-local-boot";
