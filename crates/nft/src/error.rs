//! What the kernel refuses, told so that a person can act on it.

use std::io;

use nix::errno::Errno;

/// A failed operation, with what was being done to what.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No socket could be had, or it broke.
    #[error("{action}")]
    Socket {
        /// What was being done.
        action: &'static str,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The kernel refused a message; nothing of its transaction happened.
    #[error("{operation}: {}", reason(*errno))]
    Refused {
        /// The operation and its object: `add rule to chain output`.
        operation: String,
        /// The kernel's error number.
        errno: Errno,
    },
    /// The kernel has no such thing.
    #[error(
        "{operation}: this host's kernel was built without {option}, or cannot load its module"
    )]
    Unsupported {
        /// The operation and its object.
        operation: String,
        /// What it was built without: `CONFIG_NF_TABLES`, or `… or …` where that cannot be told.
        option: String,
    },
    /// Another program made the table its own (`flags owner`): the kernel lets no other change it.
    #[error(
        "nf_tables table {table} belongs to another running program (flags owner), and no other may change it; end that program, `nft list table` shows its name"
    )]
    Owned {
        /// The table's name.
        table: &'static str,
    },
    /// Somebody else changed the rules each time between reading and writing.
    #[error("somebody goes on changing the firewall rules of this host")]
    Busy,
    /// The kernel's answer makes no sense.
    #[error("read the kernel's answer: {reason}")]
    Unreadable {
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// What was named does not exist.
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(Errno::ENOENT)
    }

    /// The kernel has no `nf_tables`, or lacks a part of it.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Unsupported { .. } => true,
            // No netfilter at all.
            Self::Socket { source, .. } => {
                source.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32)
            }
            _ => false,
        }
    }

    /// It may work a little later.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy)
    }
}

fn reason(errno: Errno) -> String {
    let advice = match errno {
        Errno::EPERM => "; this takes CAP_NET_ADMIN in the host's network namespace",
        _ => "",
    };
    errno.desc().to_lowercase() + advice
}
