//! Errors: the operation, its object and the kernel's reason.

use std::io;

use netlink::Refusal;
use nix::errno::Errno;

/// A failed operation and its object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel opened no socket, or the socket failed.
    #[error("{action}")]
    Socket {
        /// The attempted action.
        action: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The kernel refused a netlink message. If the message belongs to a transaction, the kernel
    /// carried out nothing of the transaction.
    #[error("{operation}: {refusal}")]
    Refused {
        /// The operation and its object: `add rule to chain output`.
        operation: String,
        /// The kernel's reason.
        refusal: Refusal,
    },
    /// The kernel lacks a feature.
    #[error(
        "{operation}: this host's kernel was built without {option}, or cannot load its module"
    )]
    Unsupported {
        /// The operation and its object.
        operation: String,
        /// The missing build option, such as `CONFIG_NF_TABLES`. If one of several options is
        /// missing and the kernel does not say which, the text names all of them, joined by ` or `.
        option: String,
    },
    /// Another program owns the table (`flags owner`), so the kernel accepts no changes by this
    /// process.
    #[error(
        "nf_tables table {table} belongs to another running program (flags owner), and no other may change it; end that program, `nft list table` shows its name"
    )]
    Owned {
        /// The table's name.
        table: &'static str,
    },
    /// All attempts at a transaction failed, because another process changed the rules after this
    /// process had read them.
    #[error("other processes keep changing the firewall rules of this host")]
    Busy,
    /// The kernel's answer cannot be parsed.
    #[error("read the kernel's answer: {reason}")]
    Unreadable {
        /// What the answer lacks.
        reason: String,
    },
}

impl Error {
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.errno),
            _ => None,
        }
    }

    /// Returns whether the kernel refused the operation because an object does not exist (ENOENT).
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(Errno::ENOENT)
    }

    /// Returns the kernel modules with the missing feature; empty for other errors.
    pub fn modules(&self) -> Vec<&'static str> {
        let Self::Unsupported { option, .. } = self else {
            return Vec::new();
        };
        let modules = option.split(" or ").flat_map(|option| match option {
            "CONFIG_NFT_BRIDGE_META" => &["nft_meta_bridge"][..],
            "CONFIG_NFT_CT" => &["nft_ct"],
            "CONFIG_NFT_FIB_INET" => &["nft_fib_inet"],
            "CONFIG_NFT_LIMIT" => &["nft_limit"],
            "CONFIG_NFT_MASQ" => &["nft_masq"],
            "CONFIG_NFT_NAT" => &["nft_chain_nat", "nft_nat"],
            _ => &["nf_tables"],
        });
        modules.copied().collect()
    }

    /// Returns whether the kernel has no `nf_tables` or lacks a part of it.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Unsupported { .. } => true,
            // The kernel has no netfilter at all, so it opens no socket.
            Self::Socket { source, .. } => {
                source.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32)
            }
            _ => false,
        }
    }

    /// Returns whether the error is [`Self::Busy`]. A later attempt may then succeed.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy)
    }
}

/// Returns the object of a successful operation. Returns `None` if the operation failed because the
/// kernel has no `nf_tables` or lacks a part of it.
///
/// # Errors
/// The operation failed for any other reason.
pub fn supported<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Err(error) if error.is_unsupported() => Ok(None),
        object => object.map(Some),
    }
}

/// Returns a function that converts an error of a socket to [`Error::Socket`] with this `action`.
pub(crate) fn failed(action: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Socket { action, source }
}

/// Returns the error of a socket that cannot receive.
pub(crate) fn unreceived(reason: impl Into<io::Error>) -> Error {
    failed("receive from the kernel")(reason.into())
}
