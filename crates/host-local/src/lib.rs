//! CNI plugin `host-local`: leases addresses from ranges and records the leases in files.
//!
//! The steps of an ADD, in order, and the modules that carry them out:
//!
//! | step | module |
//! |---|---|
//! | request | `config`, `request`: the range sets, and the addresses that the request names |
//! | lock | `store`, `rebuild`: locks the leases, and rebuilds their index if necessary |
//! | choose | `free`, `allocate`: the next free address of a set, in the order of the round robin |
//! | write | `store`, `directory`, `index`: the lease's file, its record in the index, the set's last address |
//! | answer | `add`: prints the result, or rolls back if a step failed |

use cni::{Plugin, SpecVersion};
use facts::{Addresses, Argument, Facts, lacks_all};

mod add;
mod allocate;
mod boot;
mod check;
mod config;
mod cooldown;
mod del;
mod directory;
mod files;
mod free;
mod index;
mod lease;
mod lock;
pub mod pod_cidr;
mod range;
mod raw;
mod read;
mod rebuild;
mod request;
pub mod resolv_conf;
mod sandbox;
mod scratch;
mod stale_lease_check;
mod storage;
mod store;

pub(crate) use boot::Boot;
pub use config::Config;
pub use directory::Content;
pub use lease::{Holder, Lease};
pub use range::{Range, number};
pub use raw::{RawConfig, RawRange};
pub use request::{Wanted, wanted};
pub use sandbox::{Origin, Sandbox};
pub use storage::{DEFAULT_DATA_DIR, EarlierBoot, Storage};
pub use store::Store;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "host-local",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: add::add,
    del: del::del,
    check: check::check,
    status: check::status,
    gc: del::gc,
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    addresses: Addresses::Ranges,
    argument: Some(Argument {
        capabilities: &["ipRanges"],
        is_needed: |keys| lacks_all(keys, &["ranges", "subnet"]),
        is_required: true,
        impact: "host-local has no range, and the runtime passes it none: every ADD fails.",
    }),
    ..Facts::of(PLUGIN.name)
};
