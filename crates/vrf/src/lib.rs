//! CNI plugin `vrf` (virtual routing and forwarding): adds a container's interface to a VRF.
//!
//! A VRF is a link whose ports have a routing table of their own.
//!
//! | step | module |
//! |---|---|
//! | request | `raw`, `config` |
//! | kernel | `port`: moves the interface with its addresses and routes; `link`: the VRF link |
//! | files | `record`: the sandbox and the VRF of an attachment, for DEL and GC |
//! | verbs | `add`, `check`; `record` for DEL and GC |

use attach::SandboxRecord as _;
use cni::{Plugin, SpecVersion, StatusRequest};
use facts::{Facts, MissingFeature};
use netlink::{Connection, NewKind, NewLink};

mod add;
mod check;
mod config;
mod link;
mod port;
mod raw;
mod record;

pub use config::Config;
pub use raw::RawConfig;
pub use record::Record;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "vrf",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: add::add,
    del: Record::del,
    check: check::check,
    status,
    gc: Record::gc,
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    missing_features: || {
        let tried = Connection::open()?.add_link(&NewLink::of("trial", NewKind::Vrf(1)));
        let mut missing = MissingFeature::of(tried, "VRF links (CONFIG_NET_VRF)", &[]);
        for feature in &mut missing {
            feature.modules.push("vrf");
        }
        Ok(missing)
    },
    ..Facts::of(PLUGIN.name)
};

/// Checks the configuration.
fn status(request: &StatusRequest) -> anyhow::Result<()> {
    Config::parse(&request.network)?;
    Ok(())
}
