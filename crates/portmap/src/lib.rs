//! CNI plugin `portmap`: forwards host ports to a sandbox.

use cni::{Plugin, SpecVersion};

mod add;
mod check;
mod conditions;
mod config;
mod decision;
mod del;
mod element;
mod facts;
mod firewall;
mod guard;
mod handover;
mod installation;
mod liveness;
mod localnet;
mod names;
mod networks;
mod plan;
mod raw;
mod record;
mod standby;
mod subject;
mod table;
mod wait;
mod words;

pub use self::facts::FACTS;
pub use config::{Config, HostAddress, Mapping};
pub use element::forward;
pub use guard::{LocalnetGuard, is_localnet_guarded, localnet_packets};
pub use localnet::localnet_links;
pub use nft::{HostPort, Protocol};
pub use plan::Forward;
pub use raw::{LocalhostGuard, RawConfig};
pub use record::needs_policies;
pub use table::{LOCALNET_CHAIN, LOCALNET_COMMENT, TABLE, tables};

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "portmap",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: add::add,
    del: del::del,
    check: check::check,
    status: check::status,
    gc: del::gc,
    reload: Some(add::reload),
};
