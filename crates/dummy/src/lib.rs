//! CNI plugin `dummy`: gives a sandbox a link that drops what it sends.

use attach::single;
use cni::{Plugin, SpecVersion};
use facts::{Extent, Facts, HostSide, Task};
use netlink::NewKind;

mod config;
mod raw;

pub use config::Dummy;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "dummy",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: single::add::<Dummy>,
    del: single::del::<Dummy>,
    check: single::check::<Dummy>,
    status: single::status::<Dummy>,
    gc: single::gc::<Dummy>,
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    host_side: HostSide::Witness,
    lacks: || single::lacks(NewKind::Dummy, "dummy links (CONFIG_DUMMY)", PLUGIN.name),
    tasks: |_, _| vec![(Task::MakeInterface, Extent::All)],
    ..Facts::of(PLUGIN.name)
};
