//! Reads the parts of a node's state that metrics need.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink::Connection;
use netns::Netns;
use runtime::Directories;
use tc::{CountedLimit, End};

use super::attachments::{Attached, attached};
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
        self.egress_limits = egress_limits(&self.attached);
        let counters = connection.link_counters()?.into_iter();
        self.counters = counters.map(|it| (it.link, it)).collect::<BTreeMap<_, _>>();
        Ok(())
    }
}

/// Returns the limits of what the sandboxes of live attachments send, by the attachment's tag. Leaves
/// out a sandbox that cannot be entered.
pub(super) fn egress_limits(attached: &[Attached]) -> BTreeMap<String, CountedLimit> {
    let alive = attached.iter().filter(|it| it.is_alive);
    let limits = alive.filter_map(|it| {
        let owner = it.attachment.owner();
        let limit = bandwidth::limits_egress(&owner).then(|| egress_limit(it))?;
        Some((owner, limit.ok()??))
    });
    limits.collect()
}

fn egress_limit(attached: &Attached) -> anyhow::Result<Option<CountedLimit>> {
    let namespace = Netns::open(attached.entry.netns())?;
    let sandbox = End::Container(&namespace).connect()?;
    let link = sandbox.link(attached.attachment.interface.as_str())?;
    Ok(tc::counted_limits(&sandbox)?.remove(&link.index))
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
