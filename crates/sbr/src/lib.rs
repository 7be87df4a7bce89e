//! CNI plugin `sbr` (source-based routing): routes a container's packets by their source address.
//!
//! Each address of the interface gets a routing table of its own, with the interface's routes, and
//! a policy rule that makes the kernel look up this table for packets from the address.
//!
//! | step | module |
//! |---|---|
//! | request | `raw`, `config` |
//! | desired state | `desired`: tables and rules of the interface's addresses (pure) |
//! | files | `record`: the sandbox, rules and tables of an attachment, for DEL and GC |
//! | verbs | `add`, `del`, `check` |

use cni::{Plugin, SpecVersion, StatusRequest, note};
use facts::{Facts, Lack};
use netlink::Connection;

mod add;
mod check;
mod config;
mod del;
mod desired;
mod raw;
mod record;

pub use config::Config;
pub use raw::RawConfig;
pub use record::Record;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "sbr",
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
    lacks: || {
        let rules = Connection::open()?.rules();
        let lack = Lack::of(
            rules,
            "policy rules (CONFIG_IP_MULTIPLE_TABLES)",
            "sbr",
            &[],
        );
        Ok(lack.into_iter().collect())
    },
    doubts: |keys| facts::read(keys).map_or_else(Vec::new, |raw| config::doubts(&raw)),
    ..Facts::of(PLUGIN.name)
};

/// Checks the configuration.
fn status(request: &StatusRequest) -> anyhow::Result<()> {
    Config::parse(&request.network)?;
    let doubts = config::doubts(&request.network.quiet_config()?);
    doubts.iter().for_each(note);
    Ok(())
}
