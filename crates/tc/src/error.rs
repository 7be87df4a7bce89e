//! Why a link cannot be limited.

use std::fmt;

use netlink::Handle;

/// A limit that cannot be set or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a request.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// The kernel was built without what it takes, or its module is not installed.
    #[error(
        "the kernel lacks {module}, without which no rate can be limited; mend it by: modprobe {module}"
    )]
    Lacks {
        /// What it lacks.
        module: Module,
        /// In its own words.
        #[source]
        source: netlink::Error,
    },
    /// Somebody else decides how a link's packets wait.
    #[error(
        "{link} has a queueing discipline of somebody else's, {discipline} {handle}; remove it by: tc qdisc del dev {link} root"
    )]
    Foreign {
        /// The link's name.
        link: String,
        /// As `tc qdisc` names it.
        discipline: String,
        /// Its number.
        handle: Handle,
    },
}

/// A part of the kernel, by the name of its module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Module {
    /// Links that arriving packets can wait on.
    Ifb,
    /// The token bucket filter.
    Tbf,
    /// The hierarchy of token buckets, which tells packets apart.
    Htb,
    /// The hook for arriving packets.
    Ingress,
    /// The filter.
    U32,
    /// The filter's action that sends packets to another link.
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
    /// The refusal of a request that `module` carries out.
    ///
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
