//! CNI plugin `bridge`: joins a sandbox to a Linux bridge by a veth pair.

use cni::Plugin;

mod bridge;
mod config;
mod desired;
mod facts;
mod host_end;
mod nf_call;
mod raw;
mod vlan;

pub use self::facts::FACTS;
pub use config::{Config, DEFAULT_BRIDGE};
pub use nf_call::FrameFilter;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = attach::plugin::<Config>(include_str!("../README.md"));
