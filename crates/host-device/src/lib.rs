//! CNI plugin `host-device`: moves a device of the host into a sandbox, and back.
//!
//! | step | module |
//! |---|---|
//! | request | `raw`, `config`: which device is meant |
//! | host | `device`: finds the device |
//! | files | `record`: the device as it was, written before it leaves |
//! | kernel | `transfer`: brings the device back and restores it |
//! | verbs | `add`, `check`, `del` |

use cni::{Plugin, SpecVersion, StatusRequest, Verb};
use facts::{Facts, HostSide, Scope, Task};

mod add;
mod check;
mod config;
mod del;
mod device;
mod raw;
mod record;
mod transfer;

pub use config::{Config, Selector};
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "host-device",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: add::add,
    del: del::del,
    check: check::check,
    status,
    gc: del::gc,
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    host_side: HostSide::Witness,
    tasks: |_, _| vec![(Task::MakeInterface, Scope::All)],
    unreturned: transfer::unreturned,
    ..Facts::of(PLUGIN.name)
};

/// Checks the configuration, except for the device: runtimes name it only at ADD. Then calls STATUS
/// of the IPAM plugin.
fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let raw: RawConfig = request.network.config()?;
    Selector::parse(&raw)?;
    cni::step("ask the IPAM plugin");
    attach::forward(&request.network, Verb::Status)
}
