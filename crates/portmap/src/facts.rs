//! What the tools know of the plugin.

use facts::{Added, Argument, Elements, Facts, Need, Proof};
use serde_json::Value;

use crate::table::{TABLE, tables};
use crate::{HostAddress, Mapping, PLUGIN, record};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    tables: &[Elements {
        table: TABLE,
        tables: || tables().into(),
        need: Need::with(&[]),
        are_expected: has_ports,
        proof: Proof::Record(|it| record::files().has(it)),
    }],
    argument: Some(Argument {
        capabilities: &["portMappings"],
        is_needed: |_| true,
        is_required: true,
        impact: "The runtime passes it no ports, so hostPorts silently do not work.",
    }),
    replaces_rules: true,
    ..Facts::of(PLUGIN.name)
};

fn has_ports(added: &Added<'_>) -> bool {
    let ports = added.arguments.get("portMappings");
    let ports = ports.and_then(Value::as_array);
    // portmap ignores a mapping for a host address if the pod has no address of the same IP
    // version.
    let is_served = |mapping: Mapping| {
        let mut addresses = added.addresses.iter();
        mapping.host == HostAddress::Any || addresses.any(|it| mapping.is_for(it.ip()))
    };
    let mut ports = ports.into_iter().flatten();
    ports.any(|it| Mapping::parse(it).map_or(true, is_served))
}
