//! CNI plugin `loopback`: brings a sandbox's loopback interface up.

use cni::{Plugin, SpecVersion};
use facts::Facts;

mod lo;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "loopback",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: lo::add,
    del: lo::del,
    check: lo::check,
    // ADD can always succeed, because every network namespace has a loopback interface.
    status: |request| lo::expect_no_keys(&request.network),
    // There is nothing to remove, because `lo` disappears with its namespace.
    gc: |request| lo::expect_no_keys(&request.network),
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts::of(PLUGIN.name);
