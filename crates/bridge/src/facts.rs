//! What the tools know of the plugin.

use cni::json;
use facts::{
    Added, Elements, Facts, HostSide, Keys, MissingFeature, Need, Proof, Scope, Task, is_set,
};
use netlink::{Connection, LinkChange, NewKind, NewLink, Request};
use serde_json::Value;

use crate::{DEFAULT_BRIDGE, PLUGIN};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    host_side: HostSide::Port(bridge_of),
    port_keys: &["vlan", "vlanTrunk", "portIsolation", "hairpinMode"],
    tables: &[FRAMES, attach::MASQUERADE],
    missing_features,
    tasks: |_, _| vec![(Task::MakeInterface, Scope::All)],
    replaces_rules: true,
    ..Facts::of(PLUGIN.name)
};

const FRAMES: Elements = Elements {
    table: attach::FRAMES_TABLE,
    tables: || attach::tables().into_iter().take(1).collect(),
    need: Need::with(&["macspoofchk", "promiscMode"]),
    are_expected: |added| {
        is_set(added.keys, "macspoofchk") || is_set(added.keys, "promiscMode") && has_copies(added)
    },
    proof: Proof::HostLink,
};

fn bridge_of(keys: &Keys) -> &str {
    let named = json::value(keys, "bridge").and_then(Value::as_str);
    named.filter(|it| !it.is_empty()).unwrap_or(DEFAULT_BRIDGE)
}

/// Returns whether ADD added elements that drop duplicate frames. Duplicates exist because a
/// promiscuous bridge also gives the host a copy of each frame, and the host sends this copy
/// through the bridge again. ADD adds such elements only for IP versions whose bridged frames
/// netfilter sees.
fn has_copies(added: &Added<'_>) -> bool {
    let [v4, v6] = (added.sees_frames)(bridge_of(added.keys));
    let mut addresses = added.addresses.iter();
    addresses.any(|it| if it.is_ipv4() { v4 } else { v6 })
}

fn missing_features() -> anyhow::Result<Vec<MissingFeature>> {
    let connection = Connection::open()?;
    let bridge = connection.add_link(&NewLink::of(BRIDGE, NewKind::Bridge));
    let master = connection.find_link(BRIDGE)?.map(|it| it.index);
    let filtering = Request::change_link(BRIDGE, &LinkChange::VlanFiltering);
    let filtering = || master.map_or(Ok(()), |_| connection.execute(vec![filtering]));
    let missing = [
        MissingFeature::of(bridge, "bridges (CONFIG_BRIDGE)", &[]),
        attach::missing_pairs(&connection, PLUGIN.name, master)?,
        MissingFeature::of(filtering(), VLAN_FILTERING, &["vlan", "vlanTrunk"]),
    ];
    Ok(missing.concat())
}

const VLAN_FILTERING: &str = "VLAN filtering of bridges (CONFIG_BRIDGE_VLAN_FILTERING)";

/// Name of the bridge in the temporary namespace, where other plugins try links of other names.
const BRIDGE: &str = "trial-bridge";
