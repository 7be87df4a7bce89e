//! What the kernel refuses, told so that a person can act on it.

use std::io;
use std::time::Duration;

use nix::errno::Errno;

/// A failed operation, with what was being done to what.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No socket could be had.
    #[error("open a netlink socket")]
    Open {
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The namespace to open a socket in cannot be entered.
    #[error(transparent)]
    Namespace(#[from] netns::Error),
    /// The kernel refused a request.
    #[error("{operation}: {}{}", reason(*errno), extended(message.as_ref()))]
    Refused {
        /// The operation and its object: `create veth vethab12`.
        operation: String,
        /// The kernel's error number.
        errno: Errno,
        /// The kernel's own words, where it has any (extended acknowledgement).
        message: Option<String>,
    },
    /// The kernel did not answer, or not with what was asked for.
    #[error("{operation}: {reason}")]
    Unanswered {
        /// The operation and its object.
        operation: String,
        /// What came instead.
        reason: &'static str,
    },
    /// An event did not come.
    #[error("waited {} s for {what}", after.as_secs_f32())]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
}

impl Error {
    /// The kernel's error number, where it gave one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// What was named does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.errno(),
            Some(Errno::ENODEV | Errno::ENOENT | Errno::ESRCH | Errno::EADDRNOTAVAIL)
        )
    }

    /// No namespace has the number that was asked for, or it ends at this moment (`get_net_ns_by_id`).
    pub fn is_no_namespace(&self) -> bool {
        self.errno() == Some(Errno::EINVAL)
    }

    /// No route leads there.
    pub(crate) fn is_no_route(&self) -> bool {
        self.errno() == Some(Errno::ENETUNREACH)
    }

    /// The route drops the packets: `unreachable`, `prohibit` or `blackhole`, in this order.
    pub(crate) fn is_discarding_route(&self) -> bool {
        matches!(
            self.errno(),
            Some(Errno::EHOSTUNREACH | Errno::EACCES | Errno::EINVAL)
        )
    }

    /// The kernel does not know the address family, such as IPv6 with `ipv6.disable=1`.
    pub(crate) fn is_unknown_family(&self) -> bool {
        matches!(self.errno(), Some(Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT))
    }

    /// No queueing discipline is where one was asked for, or one that the kernel keeps to
    /// itself.
    pub(crate) fn is_no_qdisc(&self) -> bool {
        matches!(self.errno(), Some(Errno::ENOENT | Errno::EINVAL))
    }

    /// The bridge has as many ports as it can hold.
    pub fn is_bridge_full(&self) -> bool {
        self.errno() == Some(Errno::EXFULL)
    }

    /// The kernel was built without what it takes.
    pub fn is_not_supported(&self) -> bool {
        self.errno() == Some(Errno::EOPNOTSUPP)
    }

    /// The kernel does not know a kind: of a link it says that it is not supported, of a
    /// discipline, filter or action that it does not find it.
    pub fn is_unknown_kind(&self) -> bool {
        matches!(self.errno(), Some(Errno::EOPNOTSUPP | Errno::ENOENT))
    }

    /// What was to be made exists.
    pub fn is_already_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }
}

fn reason(errno: Errno) -> String {
    let reason = errno.desc().to_lowercase();
    match errno {
        Errno::EPERM => reason + ", CAP_NET_ADMIN is needed",
        _ => reason,
    }
}

fn extended(message: Option<&String>) -> String {
    message
        .map(|message| format!(" ({message})"))
        .unwrap_or_default()
}
