//! Finds the `nf_tables` tables that should have elements of a live attachment, according to the
//! configuration that ADD used.

use facts::Added;

use super::lookup::facts;
use super::{Attached, Node, Traces};

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
        let (addresses, arguments) = (&attached.addresses(), &attached.entry.arguments);
        let owner = attached.attachment.owner();
        let mut wanted = Vec::new();
        for plugin in plugins.iter().flatten() {
            let added = Added {
                keys: &plugin.config,
                arguments: arguments.runtime_config(&plugin.capabilities),
                addresses,
                owner: &owner,
                sees_frames: &|it| {
                    let bridge = self.link_called(it);
                    bridge.map_or([false; 2], |it| self.sees_frames(it))
                },
            };
            let tables = facts(&plugin.program).tables.iter();
            let expected = tables.filter(|it| (it.are_expected)(&added));
            wanted.extend(expected.map(|it| it.table));
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
