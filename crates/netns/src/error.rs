//! Errors of namespaces and sysctls.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

/// A failed operation on a network namespace or a sysctl.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The namespace's file does not exist, or the system refuses to open it.
    #[error("open network namespace {}", path.display())]
    Open {
        /// The file's path.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The file is not a network namespace.
    #[error("{} is no network namespace", path.display())]
    NotANamespace {
        /// The file's path.
        path: PathBuf,
    },
    /// The kernel does not let this process enter the namespace, or no thread can be started.
    #[error("enter network namespace {}{}", path.display(), needed(source))]
    Enter {
        /// The file's path.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The kernel does not create a namespace for this process, or no thread can be started.
    #[error("make a network namespace{}", needed(source))]
    Make {
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The sysctl could not be read.
    #[error("read sysctl {key}")]
    Read {
        /// Name of the sysctl, as sysctl(8) spells it.
        key: String,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The sysctl could not be changed to the wanted value.
    #[error("set sysctl {key} from {was} to {value}")]
    Write {
        /// Name of the sysctl, as sysctl(8) spells it.
        key: String,
        /// The current value, or `a hidden value` if the sysctl cannot be read.
        was: String,
        /// The wanted value.
        value: String,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Returns whether the network namespace does not exist: there is no file at the path, or the
    /// file is not a network namespace.
    pub fn is_no_namespace(&self) -> bool {
        match self {
            Self::NotANamespace { .. } => true,
            Self::Open { source, .. } => source
                .raw_os_error()
                .is_some_and(|errno| NO_NAMESPACE.contains(&Errno::from_raw(errno))),
            _ => self.is_not_found(),
        }
    }

    /// Returns whether a sysctl cannot be changed because `/proc/sys` is mounted read-only.
    pub fn is_read_only(&self) -> bool {
        let is = |it: &io::Error| it.kind() == io::ErrorKind::ReadOnlyFilesystem;
        matches!(self, Self::Write { source, .. } if is(source))
    }

    /// Returns whether the namespace's file or the sysctl does not exist.
    pub fn is_not_found(&self) -> bool {
        let source = self.source().and_then(|it| it.downcast_ref::<io::Error>());
        source.is_some_and(|it| it.kind() == io::ErrorKind::NotFound)
    }
}

/// Returns the end of an error message. The text names `CAP_SYS_ADMIN` if `source` is a lack of
/// permission, because `setns` and `unshare` need this capability (namespaces(7)). The text is
/// empty for any other error.
fn needed(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => ", for which CAP_SYS_ADMIN is needed",
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
