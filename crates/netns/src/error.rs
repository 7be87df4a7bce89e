//! Errors of namespaces and sysctls.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use nix::errno::Errno;

/// A failed operation on a network namespace or a sysctl.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not a network namespace.
    #[error("{} is no network namespace", path.display())]
    NotANamespace {
        /// The file's path.
        path: PathBuf,
    },
    /// The kernel refused the operation, or no thread can be started.
    #[error("{operation}")]
    Refused {
        /// The operation and its object: `read sysctl net.ipv4.ip_forward`.
        operation: String,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Returns whether the network namespace does not exist: there is no file at the path, or the
    /// file is not a network namespace.
    pub fn is_no_namespace(&self) -> bool {
        let Self::Refused { source, .. } = self else {
            return true;
        };
        let errno = source.raw_os_error().map(Errno::from_raw);
        errno.is_some_and(|it| NO_NAMESPACE.contains(&it))
    }

    /// Returns whether a sysctl cannot be changed because `/proc/sys` is mounted read-only.
    pub fn is_read_only(&self) -> bool {
        self.is_of(ErrorKind::ReadOnlyFilesystem)
    }

    /// Returns whether the namespace's file or the sysctl does not exist.
    pub fn is_not_found(&self) -> bool {
        self.is_of(ErrorKind::NotFound)
    }

    fn is_of(&self, kind: ErrorKind) -> bool {
        matches!(self, Self::Refused { source, .. } if source.kind() == kind)
    }
}

/// Returns the end of an error message. The text names `CAP_SYS_ADMIN` if `source` is a lack of
/// permission, because `setns` and `unshare` need this capability (namespaces(7)). The text is
/// empty for any other error.
pub(crate) fn needed(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::PermissionDenied => ", for which CAP_SYS_ADMIN is needed",
        _ => "",
    }
}

/// Errors of open(2) for a path that does not or cannot exist, for a socket, and for the namespace
/// of a process that has ended. After each of them, [`Error::is_no_namespace`] returns `true`.
const NO_NAMESPACE: &[Errno] = &[
    Errno::ENOENT,
    Errno::ENOTDIR,
    Errno::ELOOP,
    Errno::ENAMETOOLONG,
    Errno::ENXIO,
    Errno::ESRCH,
];
