//! Reads the parts of a node's state that metrics need.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink::Connection;
use runtime::Directories;

use super::attachments::attached;
use super::configuration::Configuration;
use super::range::storage;
use super::tables::TableState;
use super::{Node, Part};

impl Node {
    /// Reads only what metrics need, such as leases, attachments, and counters of links. Calls no
    /// plugin, and does not read the node's addresses and routes.
    pub fn counted(directories: &Directories) -> Self {
        let mut node = Self::leased(directories);
        node.resting = node.take(Part::Leases, resting(&node.configuration));
        (node.tables, node.firewall.elements) = node.take(Part::Firewall, TableState::read_all());
        (node.attached, node.invalid_entries) =
            node.take(Part::Cache, attached(&directories.cache));
        let counters = node.read_counters();
        node.take(Part::Links, counters);
        node
    }

    fn read_counters(&mut self) -> anyhow::Result<()> {
        let connection = Connection::open()?;
        self.links = connection.links()?;
        self.limits = tc::counted_limits(&connection)?;
        let counters = connection.link_counters()?.into_iter();
        self.counters = counters.map(|it| (it.link, it)).collect::<BTreeMap<_, _>>();
        Ok(())
    }
}

/// Returns the released addresses that are still in their cooldown, each with the name of its
/// network. host-local does not lease these addresses unless a caller requests them.
fn resting(configuration: &Configuration) -> anyhow::Result<BTreeSet<(String, IpAddr)>> {
    let mut resting = BTreeSet::new();
    for source in configuration.sources() {
        if let Some(storage) = storage(source) {
            let addresses = storage.resting(&source.network.list.name)?.into_iter();
            resting.extend(addresses.map(|it| (source.name().to_owned(), it)));
        }
    }
    Ok(resting)
}
