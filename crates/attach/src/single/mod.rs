//! Interfaces without a pair: links that live in a sandbox alone, such as macvlan links.
//!
//! A plugin parses its configuration to a [`Single`], the desired state, in
//! [`SandboxLink::parse`]. ADD applies it, CHECK compares the sandbox with it. DEL and GC remove the
//! link and then the lease. A [`Witness`](crate::Witness) stands for the link on the host.

use cni::{Plugin, SpecVersion};
use facts::{Facts, HostSide, MissingFeature, Scope, Task};

mod add;
mod check;
mod del;
mod desired;
mod made;
mod siblings;
mod stale;
mod tap;

pub use add::add;
pub use check::{check, status};
pub use del::{del, gc};
pub use desired::{
    Addresses, Kind, Mac, Parent, Place, SandboxLink, Single, missing_features, mtu,
};
pub use stale::remove_stale;
pub use tap::NewTap;

/// Returns the plugin with this name, whose links `P` describes, with its page for operators.
pub const fn plugin<P: SandboxLink>(name: &'static str, page: &'static str) -> Plugin {
    Plugin {
        name,
        page,
        spec_versions: SpecVersion::ALL,
        add: add::<P>,
        del: del::<P>,
        check: check::<P>,
        status: status::<P>,
        gc: gc::<P>,
        reload: None,
    }
}

/// Returns the facts of the plugin with this name. `missing_features` reports what it needs and the
/// kernel lacks.
pub const fn facts(
    name: &'static str,
    missing_features: fn() -> anyhow::Result<Vec<MissingFeature>>,
) -> Facts {
    Facts {
        host_side: HostSide::Witness,
        missing_features,
        tasks: |_, _| vec![(Task::MakeInterface, Scope::All)],
        ..Facts::of(name)
    }
}
