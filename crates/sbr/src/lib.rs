//! CNI plugin `sbr` (source-based routing): routes a container's packets by their source address.
//!
//! Each address of the interface gets a routing table of its own, with the interface's routes, and
//! a policy rule that makes the kernel look up this table for packets from the address.
//!
//! | step | module |
//! |---|---|
//! | request | `raw`, `config` |
//! | desired state | `desired`: tables and rules of the interface's addresses (pure) |
//! | verbs | `add`, `check`; DEL and GC by [`Record`]: the sandbox, rules and tables of an attachment |

use attach::SandboxRecord as _;
use cni::{Plugin, SpecVersion, StatusRequest, note};
use facts::{Facts, MissingFeature};
use netlink::Connection;

mod add;
mod check;
mod config;
mod desired;
mod raw;

pub use attach::SourceRules as Record;
pub use config::Config;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "sbr",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: add::add,
    del: Record::del,
    check: check::check,
    status,
    gc: Record::gc,
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    missing_features: || {
        let rules = Connection::open()?.rules();
        let feature = "policy rules (CONFIG_IP_MULTIPLE_TABLES)";
        Ok(MissingFeature::of(rules, feature, &[]))
    },
    warnings: |keys| facts::read(keys).map_or_else(Vec::new, |raw| config::warnings(&raw)),
    ..Facts::of(PLUGIN.name)
};

/// Checks the configuration.
fn status(request: &StatusRequest) -> anyhow::Result<()> {
    Config::parse(&request.network)?;
    let warnings = config::warnings(&request.network.quiet_config()?);
    warnings.iter().for_each(note);
    Ok(())
}
