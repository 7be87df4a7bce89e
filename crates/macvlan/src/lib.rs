//! CNI plugin `macvlan`: gives a sandbox a link with a MAC of its own on a network card.

use attach::single;
use cni::{Plugin, SpecVersion};
use facts::{Extent, Facts, HostSide, Task};
use netlink::{MacVlanMode, NewKind};

mod config;
mod raw;

pub use config::Macvlan;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "macvlan",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: single::add::<Macvlan>,
    del: single::del::<Macvlan>,
    check: single::check::<Macvlan>,
    status: single::status::<Macvlan>,
    gc: single::gc::<Macvlan>,
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    host_side: HostSide::Witness,
    lacks: || {
        single::lacks(
            NewKind::Macvlan(MacVlanMode::Bridge, None),
            "macvlan links (CONFIG_MACVLAN)",
            PLUGIN.name,
        )
    },
    tasks: |_, _| vec![(Task::MakeInterface, Extent::All)],
    ..Facts::of(PLUGIN.name)
};
