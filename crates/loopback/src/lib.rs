//! CNI plugin `loopback`: brings a sandbox's loopback interface up.

use cni::{Plugin, SpecVersion};

mod lo;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "loopback",
    spec_versions: SpecVersion::ALL,
    add: lo::add,
    del: lo::del,
    check: lo::check,
    status: lo::status,
    gc: lo::gc,
    reload: None,
};
