//! Errors of setting or reading a limit.

use netlink::Handle;

/// A failure to set or read a limit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a request.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// The kernel was built without a required module, or the module is not installed.
    #[error("{}", lacks(module))]
    Lacks {
        /// The missing module.
        module: &'static str,
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

/// Returns a text for the operator which says that the kernel lacks this module.
pub fn lacks(module: &str) -> String {
    let consequence = match module {
        module::FQ_CODEL => "all packets of a limited container wait in one queue",
        _ => "rates cannot be limited",
    };
    format!("the kernel lacks {module}, so {consequence}; load it with: modprobe {module}")
}

/// Names of the kernel modules that limits need.
pub mod module {
    /// The token bucket filter.
    pub const TBF: &str = "sch_tbf";
    /// The fair queue. Limits can do without it.
    pub const FQ_CODEL: &str = "sch_fq_codel";
    /// The hierarchical token bucket, for limits that apply to a part of the traffic.
    pub const HTB: &str = "sch_htb";
    /// The u32 filter, which selects packets, for example by their addresses.
    pub const U32: &str = "cls_u32";
}

impl Error {
    /// Returns the error for a refused request that needs `module`: [`Error::Lacks`] if the kernel
    /// does not know the kind of object, and [`Error::Netlink`] otherwise.
    pub fn of(module: &'static str, source: netlink::Error) -> Self {
        if source.is_unknown_kind() {
            return Self::Lacks { module, source };
        }
        Self::Netlink(source)
    }
}
