//! Errors of setting or reading a limit.

use std::fmt;

use netlink::Handle;

/// A failure to set or read a limit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a request.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// The kernel was built without a required module, or it is not installed.
    #[error(
        "the kernel lacks {module}, so rates cannot be limited; load it with: modprobe {module}"
    )]
    Lacks {
        /// The missing module.
        module: Module,
        /// The kernel's refusal.
        #[source]
        source: netlink::Error,
    },
    /// Another program has set a qdisc on the link.
    #[error(
        "{link} has a qdisc of another program, {kind} {handle}; remove it with: tc qdisc del dev {link} root"
    )]
    Foreign {
        /// The link's name.
        link: String,
        /// The qdisc's name in `tc qdisc`.
        kind: String,
        /// The qdisc's number.
        handle: Handle,
    },
}

/// A feature of the kernel, by its module's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Module {
    /// Links that queue redirected ingress packets.
    Ifb,
    /// The token bucket filter.
    Tbf,
    /// The hierarchical token bucket, which classifies packets.
    Htb,
    /// The hook for ingress packets.
    Ingress,
    /// The packet filter.
    U32,
    /// The filter action that redirects packets to another link.
    Mirred,
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ifb => "ifb",
            Self::Tbf => "sch_tbf",
            Self::Htb => "sch_htb",
            Self::Ingress => "sch_ingress",
            Self::U32 => "cls_u32",
            Self::Mirred => "act_mirred",
        })
    }
}

impl Error {
    /// Returns the error of a refused request that needs `module`.
    pub fn of(module: Module, error: netlink::Error) -> Self {
        if error.is_unknown_kind() {
            return Self::Lacks {
                module,
                source: error,
            };
        }
        Self::Netlink(error)
    }
}
