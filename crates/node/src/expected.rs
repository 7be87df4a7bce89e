//! Finds the `nf_tables` tables that should have elements of a live attachment, according to the
//! configuration that ADD used.

use netlink::LinkKind;
use portmap::{HostAddress, Mapping};
use runtime::PluginConfig;
use serde_json::Value;

use super::{Attached, Consequence, Node, Traces, bridge_of};

impl Node {
    /// Returns whether this suite made the attachment: whether a link or an element in `nf_tables`
    /// is tagged with it.
    pub fn is_ours(&self, attached: &Attached) -> bool {
        let owner = attached.attachment.owner();
        let mut elements = self.firewall.elements.iter();
        let mut links = self.links.iter();
        elements.any(|it| it.owner == owner) || links.any(|it| it.alias.as_ref() == Some(&owner))
    }

    /// Returns the tables that should have elements of the attachment, according to the
    /// configuration that ADD used.
    pub fn expected_tables(&self, attached: &Attached) -> Vec<&'static str> {
        let network = attached.entry.network(&self.configuration.directory);
        let plugins = network.ok().flatten().map(|it| it.all_plugins());
        let mut wanted = Vec::new();
        for plugin in plugins.unwrap_or_default() {
            match plugin.program.as_str() {
                "bridge" => {
                    wanted.extend(plugin.is_set("ipMasq").then_some(attach::MASQUERADE_TABLE));
                    let drops_copies =
                        plugin.is_set("promiscMode") && has_copies(self, &plugin, attached);
                    let has_frames = plugin.is_set("macspoofchk") || drops_copies;
                    wanted.extend(has_frames.then_some(attach::FRAMES_TABLE));
                }
                "ptp" => wanted.extend(plugin.is_set("ipMasq").then_some(attach::MASQUERADE_TABLE)),
                "firewall" if !attached.addresses().is_empty() => {
                    wanted.push(firewall::TABLE);
                    let policy = plugin.key("ingressPolicy").and_then(Value::as_str);
                    let is_isolated = policy == Some("isolated");
                    wanted.extend(is_isolated.then_some(firewall::FRAMES_TABLE));
                }
                "portmap" if has_ports(attached, &plugin.capabilities) => {
                    wanted.push(portmap::TABLE);
                }
                "bandwidth" if has_backstop(self, attached) => wanted.push(bandwidth::TABLE),
                _ => {}
            }
        }
        wanted
    }
}

impl Traces<'_> {
    /// Returns the tables that should have elements of the attachment and have none. Returns no
    /// table if the attachment has no cached entry or no sandbox. Also returns no table for an
    /// attachment that the Go plugins made, because they make rules instead of elements.
    pub fn lacking_tables(&self, node: &Node) -> Vec<&'static str> {
        let is_ours = !self.links.is_empty() || !self.elements.is_empty();
        let Some(attached) = self.cached.filter(|it| it.is_alive && is_ours) else {
            return Vec::new();
        };
        let mut tables = node.expected_tables(attached);
        tables.retain(|table| self.elements.iter().all(|it| it.table != *table));
        tables
    }
}

/// Returns whether ADD added a limit in `nf_tables` for what the pod sends. ADD adds this limit in
/// addition to the qdisc of the ifb, because root in the pod can evade the qdisc. If the kernel
/// does not support such limits in `nf_tables`, ADD adds only the qdisc.
fn has_backstop(node: &Node, attached: &Attached) -> bool {
    let owner = attached.attachment.owner();
    let mut ifbs = node.links.iter().filter(|it| it.kind == LinkKind::Ifb);
    let mut lacks = node.lacks.iter();
    ifbs.any(|it| it.alias.as_ref() == Some(&owner))
        && !lacks.any(|it| it.need.consequence == Consequence::LimitsEvadable)
}

/// Returns whether ADD added elements that drop duplicate frames. Duplicates exist because a
/// promiscuous bridge also gives the host a copy of each frame, and the host sends this copy
/// through the bridge again. ADD adds such elements only for IP versions whose bridged frames
/// netfilter sees.
fn has_copies(node: &Node, plugin: &PluginConfig, attached: &Attached) -> bool {
    let bridge = bridge_of(plugin).and_then(|it| node.link_called(it));
    let [v4, v6] = bridge.map_or([false; 2], |it| node.sees_frames(it));
    let mut addresses = attached.addresses().into_iter();
    addresses.any(|it| if it.is_ipv4() { v4 } else { v6 })
}

fn has_ports(attached: &Attached, declared: &[String]) -> bool {
    let asked = attached.entry.arguments.runtime_config(declared);
    let ports = asked.get("portMappings").and_then(Value::as_array);
    let addresses = attached.addresses();
    // portmap ignores a mapping for a host address if the pod has no address of the same IP
    // version.
    let is_served = |mapping: Mapping| {
        let mut addresses = addresses.iter();
        mapping.host == HostAddress::Any || addresses.any(|it| mapping.is_for(it.ip()))
    };
    let mut ports = ports.into_iter().flatten();
    ports.any(|it| Mapping::parse(it).map_or(true, is_served))
}
