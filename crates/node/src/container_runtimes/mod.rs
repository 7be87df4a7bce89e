//! Container runtimes of the node: the directories in which they look for plugins, and the
//! executables that they find there.
//!
//! This module reads the runtimes' configuration files. It knows neither the options of a runtime's
//! command line nor the configuration of an ordinary user.

mod containerd;
mod crio;
mod document;
mod lookup;
mod podman;

use std::path::Path;

pub use self::containerd::version as containerd_version;
pub use self::lookup::Lookup;
use super::Configuration;

/// A container runtime that has a configuration file on this node.
#[derive(Debug)]
pub struct ContainerRuntime {
    /// The runtime's name.
    pub name: &'static str,
    /// Where the runtime looks for plugins, or why its configuration is invalid. The text names the
    /// file.
    pub lookup: Result<Lookup, String>,
}

impl ContainerRuntime {
    /// Returns the runtimes that have a configuration file and call plugins. Compares the plugins
    /// that they find with those of `configuration`.
    pub fn read_all(configuration: &Configuration) -> Vec<Self> {
        let root = Path::new("/");
        let read = [
            ("containerd", containerd::read(root)),
            ("CRI-O", crio::read(root)),
            ("podman", podman::read(root)),
        ];
        let read = read.into_iter();
        let present = read.filter_map(|(name, lookup)| Some((name, lookup.transpose()?)));
        let compared = present.map(|(name, lookup)| {
            let lookup = lookup.map(|it| it.compared(configuration));
            let lookup = lookup.map_err(super::message);
            Self { name, lookup }
        });
        compared.collect()
    }
}
