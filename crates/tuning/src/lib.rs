//! CNI plugin `tuning`: changes sysctls of a sandbox and settings of its interface.
//!
//! | step | module |
//! |---|---|
//! | request | `raw`, `config`, `name`, `allowlist`: the configuration, and the allowed sysctls |
//! | desired state | `settings`: the settings that an interface shall have, or had before ADD |
//! | files | `record`: the former settings, which DEL restores |
//! | verbs | `add`, `del`, `check` |

use cni::{CniArgs, Plugin, SpecVersion, StatusRequest};
use facts::Facts;

mod add;
mod allowlist;
mod check;
mod config;
mod del;
mod name;
mod raw;
mod record;
mod settings;

pub use config::Config;
pub use name::SysctlName;
pub use raw::RawConfig;
pub use settings::Settings;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "tuning",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: add::add,
    del: del::del,
    check: check::check,
    status,
    gc: record::collect,
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts::of(PLUGIN.name);

/// Checks the configuration, and that the operator's allowlist permits its sysctls. Does not read
/// `CNI_ARGS`, because runtimes pass no arguments with STATUS.
fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network, &CniArgs::default())?;
    allowlist::expect_allowed(&config)
}
