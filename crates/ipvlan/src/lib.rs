//! CNI plugin `ipvlan`: gives a sandbox a link with the MAC of a network card.

use attach::single;
use cni::{Plugin, SpecVersion};
use facts::{Extent, Facts, HostSide, Task};
use netlink::{IpVlanMode, NewKind};

mod config;
mod raw;

pub use config::Ipvlan;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "ipvlan",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: single::add::<Ipvlan>,
    del: single::del::<Ipvlan>,
    check: single::check::<Ipvlan>,
    status: single::status::<Ipvlan>,
    gc: single::gc::<Ipvlan>,
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    host_side: HostSide::Witness,
    lacks: || {
        single::lacks(
            NewKind::Ipvlan(IpVlanMode::L2),
            "ipvlan links (CONFIG_IPVLAN)",
            PLUGIN.name,
        )
    },
    tasks: |_, _| vec![(Task::MakeInterface, Extent::All)],
    ..Facts::of(PLUGIN.name)
};
