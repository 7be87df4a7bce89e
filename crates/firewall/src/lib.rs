//! CNI plugin `firewall`: lets a sandbox's traffic pass the host's firewall, and isolates bridges.

use std::net::IpAddr;

use cni::{Plugin, SpecVersion, json};
use facts::{Added, Elements, Facts, Need, Proof};

mod config;
mod desired;
mod firewalld;
mod follow;
mod installation;
mod iptables;
mod legacy;
mod permission;
mod raw;
mod record;
mod table;
mod verbs;

pub use config::{CHAIN, Config};
pub use desired::is_shared;
pub use follow::follow;
pub use installation::is_needed;
pub use raw::RawConfig;
pub use table::{FRAMES_TABLE, TABLE, is_chain_of_mark, tables};

/// Lets packets from and to `address` pass, as an ADD would, in the network namespace of the
/// calling thread. To test the effect of an ADD, the caller first copies the host's rules into that
/// namespace.
///
/// # Errors
/// As an ADD.
pub fn permit(config: &Config, address: IpAddr) -> anyhow::Result<()> {
    desired::Desired::permission(config, "", &[address]).restore(&[])
}

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "firewall",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: verbs::add,
    del: verbs::del,
    check: verbs::check,
    status: verbs::status,
    gc: verbs::gc,
    reload: Some(verbs::reload),
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    tables: &[
        Elements {
            table: TABLE,
            tables: || tables().into_iter().take(1).collect(),
            need: Need::with(&[]),
            are_expected: |added| !added.addresses.is_empty(),
            proof: Proof::Record(|it| record::files().has(it)),
        },
        Elements {
            table: FRAMES_TABLE,
            tables: || tables().into_iter().skip(1).collect(),
            need: Need::with(&["ingressPolicy"]),
            are_expected: is_isolated,
            proof: Proof::Record(|it| record::files().has(it)),
        },
    ],
    replaces_rules: true,
    ..Facts::of(PLUGIN.name)
};

fn is_isolated(added: &Added<'_>) -> bool {
    let policy = json::value(added.keys, "ingressPolicy");
    policy.is_some_and(|it| *it == "isolated") && !added.addresses.is_empty()
}
