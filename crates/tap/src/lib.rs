//! CNI plugin `tap`: gives a sandbox a tap link, which a program such as a virtual machine opens.

use attach::single;
use cni::{Plugin, SpecVersion};
use facts::{Facts, HostSide, MissingFeature, Need, Scope, Task};

mod config;
mod raw;

pub use config::Tap;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "tap",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: single::add::<Tap>,
    del: single::del::<Tap>,
    check: single::check::<Tap>,
    status: single::status::<Tap>,
    gc: single::gc::<Tap>,
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    host_side: HostSide::Witness,
    missing_features: || Ok(missing_feature().into_iter().collect()),
    tasks: |_, _| vec![(Task::MakeInterface, Scope::All)],
    ..Facts::of(PLUGIN.name)
};

fn missing_feature() -> Option<MissingFeature> {
    let tried = netlink::Tap::default().create(PLUGIN.name, None);
    Some(MissingFeature {
        reason: format!("{:#}", tried.err()?),
        plugins: vec![PLUGIN.name],
        need: Need::with(&[]),
        modules: vec!["tun"],
    })
}
