//! Errors of tap links.

use std::io;

/// A link was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device file cannot be opened.
    #[error("open /dev/net/tun{remedy}")]
    Open {
        /// What the operator can do.
        remedy: &'static str,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The kernel refused a request.
    #[error("{operation}{remedy}")]
    Refused {
        /// The request, in words.
        operation: String,
        /// What the operator can do.
        remedy: &'static str,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The kernel does not support, or does not know, the context.
    #[error("use SELinux context {context:?}{remedy}")]
    Context {
        /// The context.
        context: String,
        /// What the operator can do.
        remedy: &'static str,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}
