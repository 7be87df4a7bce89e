//! CNI plugin `vlan`: gives a sandbox a VLAN of a network card.

use attach::single;
use cni::{Plugin, SpecVersion};
use facts::{Extent, Facts, HostSide, Task};
use netlink::NewKind;

mod config;
mod raw;

pub use config::Vlan;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "vlan",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: single::add::<Vlan>,
    del: single::del::<Vlan>,
    check: single::check::<Vlan>,
    status: single::status::<Vlan>,
    gc: single::gc::<Vlan>,
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    host_side: HostSide::Witness,
    lacks: || {
        single::lacks(
            NewKind::Vlan(100),
            "VLAN links (CONFIG_VLAN_8021Q)",
            PLUGIN.name,
        )
    },
    tasks: |_, _| vec![(Task::MakeInterface, Extent::All)],
    ..Facts::of(PLUGIN.name)
};
