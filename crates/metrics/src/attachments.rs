//! Numbers of attachments.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use netlink::LinkKind;
use node::{Attached, Node, Traces};

use crate::family::{Family, Writer};
use crate::label::Text;

/// Numbers of live attachments.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    /// By network, including configured networks without attachment.
    live: BTreeMap<Text, u64>,
    /// Attachments that lack elements in a table, by table.
    lacking: BTreeMap<&'static str, u64>,
}

impl Attachments {
    pub fn of(node: &Node, traces: &BTreeMap<String, Traces<'_>>) -> Self {
        let mut attachments = Self::default();
        for (_, network) in node.configuration.networks() {
            let name = Text::new(network.list.name.as_str());
            attachments.live.entry(name).or_default();
        }
        for table in checked_tables(node) {
            attachments.lacking.entry(table).or_default();
        }
        for (owner, traces) in traces {
            let cached = traces.cached.filter(|it| it.is_alive);
            let has_link = traces.links.iter().any(|it| it.kind == LinkKind::Veth);
            if cached.is_some() || has_link {
                let [network, ..] = names(owner, traces.cached);
                *attachments.live.entry(network).or_default() += 1;
            }
            for table in cached.into_iter().flat_map(|it| lacking(node, it, traces)) {
                *attachments.lacking.entry(table).or_default() += 1;
            }
        }
        attachments
    }

    pub fn encode(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let live = self.live.iter();
        writer.gauges(
            &LIVE,
            live.map(|(network, it)| ([("network", network.as_str())], *it)),
        )
    }

    /// Writes what only elements show, if the firewall could be read.
    pub fn encode_lacking(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let lacking = self.lacking.iter();
        writer.gauges(
            &LACKING,
            lacking.map(|(table, it)| ([("table", *table)], *it)),
        )
    }
}

/// Returns network, container and interface of an attachment. The tag has hashes in place of long
/// names, so the names in a runtime's cache take precedence.
pub(crate) fn names(owner: &str, cached: Option<&Attached>) -> [Text; 3] {
    if let Some(Attached { attachment, .. }) = cached {
        return [
            Text::new(attachment.network.as_str()),
            Text::new(attachment.container.as_str()),
            Text::new(attachment.interface.as_str()),
        ];
    }
    let mut names = owner
        .strip_prefix("cni:")
        .unwrap_or_default()
        .splitn(3, '/');
    [(); 3].map(|()| Text::new(names.next().unwrap_or_default()))
}

/// Returns the tables in which the attachment should have elements and has none. Attachments of the
/// reference have rules instead of elements, so nothing is missing for them.
fn lacking(node: &Node, attached: &Attached, traces: &Traces<'_>) -> Vec<&'static str> {
    if traces.links.is_empty() && traces.elements.is_empty() {
        return Vec::new();
    }
    let held: BTreeSet<_> = traces.elements.iter().map(|it| it.table).collect();
    let mut lacking = node.expected_tables(attached);
    lacking.retain(|it| *it != UNCHECKED && !held.contains(it));
    lacking.sort_unstable();
    lacking.dedup();
    lacking
}

fn checked_tables(node: &Node) -> impl Iterator<Item = &'static str> {
    let tables = node.tables.iter().map(|it| it.name);
    tables.filter(|it| *it != UNCHECKED)
}

/// The table of bandwidth. Only a trial shows whether the kernel supports its elements, and a trial
/// is too slow for each scrape.
const UNCHECKED: &str = bandwidth::TABLE;

const LIVE: Family = Family {
    name: "cni_attachments",
    unit: None,
    help: "Live attachments: their sandbox exists, or a link of the host is tagged with them.",
};

const LACKING: Family = Family {
    name: "cni_attachments_lacking_elements",
    unit: None,
    help: "Live attachments without the elements in nf_tables that their configuration needs. \
           To restore them: cnitool reload.",
};
