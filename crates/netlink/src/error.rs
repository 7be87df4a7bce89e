//! Errors: the operation, its object and the kernel's reason.

use std::io;
use std::time::Duration;

use nix::errno::Errno;

use crate::Refusal;

/// A failed operation and its object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel did not open a socket.
    #[error("open a netlink socket")]
    Open {
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The thread cannot enter the namespace in which the socket is to be opened.
    #[error(transparent)]
    Namespace(#[from] netns::Error),
    /// The kernel refused a request.
    #[error("{operation}: {refusal}")]
    Refused {
        /// The operation and its object: `create veth vethab12`.
        operation: String,
        /// The kernel's reason.
        refusal: Refusal,
    },
    /// The request cannot be sent, or the kernel's answer is missing or lost.
    #[error("{operation}: {reason}")]
    Unanswered {
        /// The operation and its object: `list links`.
        operation: String,
        /// What went wrong: `the answer is lost`.
        reason: &'static str,
    },
    /// A list is too long, or changes during every attempt to read it.
    #[error("{operation}: {reason}")]
    Unlisted {
        /// The operation and its object: `list links`.
        operation: String,
        /// What went wrong: `the list is too long`.
        reason: &'static str,
    },
    /// An awaited event did not occur in time.
    #[error("waited {} s for {what}", after.as_secs_f32())]
    Timeout {
        /// The awaited event.
        what: String,
        /// The time waited.
        after: Duration,
    },
}

impl Error {
    /// Returns the kernel's error number for a refused request; `None` for any other error.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.errno),
            _ => None,
        }
    }

    /// Returns whether a request has no answer, as if memory is scarce. The processes of a sandbox cannot
    /// cause that.
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unanswered { .. })
    }

    /// Returns whether the kernel refused the request because the object does not exist.
    pub fn is_not_found(&self) -> bool {
        use Errno::{EADDRNOTAVAIL, ENODEV, ENOENT, ESRCH};
        self.is_one_of(&[ENODEV, ENOENT, ESRCH, EADDRNOTAVAIL])
    }

    fn is_one_of(&self, reasons: &[Errno]) -> bool {
        self.errno().is_some_and(|errno| reasons.contains(&errno))
    }

    /// Returns whether a request that names a network namespace by its nsid failed because this
    /// namespace does not exist or because the kernel is removing it (`get_net_ns_by_id`). For a
    /// request without an nsid, the result has no meaning.
    pub fn is_no_namespace(&self) -> bool {
        self.errno() == Some(Errno::EINVAL)
    }

    /// Returns whether a route look-up failed because no route matches the destination.
    pub(crate) fn is_no_route(&self) -> bool {
        self.errno() == Some(Errno::ENETUNREACH)
    }

    /// Returns whether a route look-up failed because the matching route drops the packets. The
    /// kernel answers EHOSTUNREACH for the route type `unreachable`, EACCES for `prohibit` and
    /// EINVAL for `blackhole`.
    pub(crate) fn is_discarding_route(&self) -> bool {
        self.is_one_of(&[Errno::EHOSTUNREACH, Errno::EACCES, Errno::EINVAL])
    }

    /// Returns whether the kernel lacks the address family, for example IPv6 with `ipv6.disable=1`.
    pub(crate) fn is_unknown_family(&self) -> bool {
        matches!(self.errno(), Some(Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT))
    }

    /// Returns whether the kernel reports that the requested parent has no qdisc or can have none, or
    /// that the requested class does not exist. The parent may still have a default qdisc that the kernel
    /// does not show.
    pub(crate) fn is_no_qdisc(&self) -> bool {
        self.is_one_of(&[Errno::ENOENT, Errno::EINVAL, Errno::EOPNOTSUPP])
    }

    /// Returns whether the bridge has its maximum number of ports.
    pub fn is_bridge_full(&self) -> bool {
        self.errno() == Some(Errno::EXFULL)
    }

    /// Returns whether the kernel does not support what was requested.
    pub fn is_not_supported(&self) -> bool {
        self.errno() == Some(Errno::EOPNOTSUPP)
    }

    /// Returns whether the kernel does not know the requested kind of link, qdisc, filter or
    /// action. The kernel returns EOPNOTSUPP for an unknown kind of link, and ENOENT for an unknown
    /// kind of qdisc, filter or action.
    pub fn is_unknown_kind(&self) -> bool {
        matches!(self.errno(), Some(Errno::EOPNOTSUPP | Errno::ENOENT))
    }

    /// Returns whether another link below the same parent, or the parent, has the MAC.
    pub fn is_mac_in_use(&self) -> bool {
        self.errno() == Some(Errno::EADDRINUSE)
    }

    /// Returns whether the object to be created already exists.
    pub fn is_already_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }
}

/// Returns the object of a successful look-up. Returns `None` if the look-up failed because the
/// object does not exist.
///
/// # Errors
/// All other errors of `object`.
pub fn found<T>(object: Result<T, Error>) -> Result<Option<T>, Error> {
    match object {
        Err(error) if error.is_not_found() => Ok(None),
        object => object.map(Some),
    }
}

/// Returns the object of a successful creation. Returns `None` if the creation failed because the
/// object already exists.
///
/// # Errors
/// All other errors of `object`.
pub fn created<T>(object: Result<T, Error>) -> Result<Option<T>, Error> {
    match object {
        Err(error) if error.is_already_exists() => Ok(None),
        object => object.map(Some),
    }
}
