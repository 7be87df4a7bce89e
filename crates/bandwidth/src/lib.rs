//! CNI plugin `bandwidth`: limits the rates at which a sandbox receives (ingress) and sends
//! (egress).

use cni::{Plugin, SpecVersion};

mod add;
mod asked;
mod backstop;
mod check;
pub mod checkpoint;
mod config;
mod del;
mod facts;
mod ifb;
mod limiting;
mod pair;
mod pod_resources;
mod policy;
pub mod quantity;
mod raw;
mod record;
mod reload;
mod resource;

pub use self::facts::{CAPABILITY, FACTS};
pub use asked::Asked;
pub use backstop::{TABLE, tables};
pub use config::{ANNOTATIONS, Config, POD_ANNOTATIONS};
pub use pod_resources::PodResources;
pub use raw::RawConfig;
pub use record::{has_allocation, limits_egress};
pub use resource::Direction;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "bandwidth",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::WITH_INTERFACES,
    add: add::add,
    del: del::del,
    check: check::check,
    status: check::status,
    gc: del::gc,
    reload: Some(reload::reload),
};
