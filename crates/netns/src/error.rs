//! What can go wrong with a namespace or a sysctl.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

/// A namespace that cannot be entered, or a sysctl that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such file, or it may not be opened.
    #[error("open network namespace {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// A file, but of no network namespace.
    #[error("{} is no network namespace", path.display())]
    NotANamespace {
        /// The file.
        path: PathBuf,
    },
    /// The kernel does not let this process in.
    #[error("enter network namespace {}{}", path.display(), needed(source))]
    Enter {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The kernel makes no namespace for this process.
    #[error("make a network namespace{}", needed(source))]
    Make {
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// A sysctl could not be read.
    #[error("read sysctl {key}")]
    Read {
        /// As sysctl(8) spells it.
        key: String,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// A sysctl has another value and could not be changed.
    #[error("set sysctl {key} from {was} to {value}")]
    Write {
        /// As sysctl(8) spells it.
        key: String,
        /// The value that was there.
        was: String,
        /// The value that was wanted.
        value: String,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// There is no network namespace where one was: the file is gone, or it is another, or nothing
    /// that could ever be opened as one.
    pub fn is_no_namespace(&self) -> bool {
        match self {
            Self::NotANamespace { .. } => true,
            Self::Open { source, .. } => source
                .raw_os_error()
                .is_some_and(|errno| NO_NAMESPACE.contains(&Errno::from_raw(errno))),
            _ => self.is_not_found(),
        }
    }

    /// What was looked for does not exist.
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Open { source, .. }
            | Self::Enter { source, .. }
            | Self::Make { source }
            | Self::Read { source, .. }
            | Self::Write { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Self::NotANamespace { .. } => false,
        }
    }
}

/// For `setns` and `unshare` (namespaces(7)).
fn needed(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => ", for which CAP_SYS_ADMIN is needed",
        _ => "",
    }
}

/// What open(2) says of a path that leads nowhere, a socket, or a process that has ended.
const NO_NAMESPACE: &[Errno] = &[
    Errno::ENOENT,
    Errno::ENOTDIR,
    Errno::ELOOP,
    Errno::ENAMETOOLONG,
    Errno::ENXIO,
    Errno::ESRCH,
];
