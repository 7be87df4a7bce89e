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
        let read = [
            ("containerd", containerd::read(Path::new(CONTAINERD))),
            (
                "CRI-O",
                crio::read(Path::new(CRIO), Path::new(CRIO_DROP_INS)),
            ),
            ("podman", podman::read(&podman::Files::default())),
        ];
        let read = read.into_iter();
        let present = read.filter_map(|(name, lookup)| Some((name, lookup.transpose()?)));
        let compared = present.map(|(name, lookup)| Self {
            name,
            lookup: lookup
                .map(|it| it.compared(configuration))
                .map_err(super::message),
        });
        compared.collect()
    }
}

const CONTAINERD: &str = "/etc/containerd/config.toml";
const CRIO: &str = "/etc/crio/crio.conf";
const CRIO_DROP_INS: &str = "/etc/crio/crio.conf.d";
