//! Live attachments without the elements in `nf_tables` that they should have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use node::{Attached, Node, Traces};

use crate::family::{Family, Writer};

/// Numbers of attachments that lack elements, by table.
#[derive(Debug, Default)]
pub(crate) struct Lacking(BTreeMap<&'static str, u64>);

impl Lacking {
    pub fn of(node: &Node, traces: &BTreeMap<String, Traces<'_>>) -> Self {
        let checked = node.tables.iter().map(|it| it.name);
        let checked = checked.filter(|it| *it != UNCHECKED);
        let mut lacking = Self(checked.map(|it| (it, 0)).collect());
        for traces in traces.values() {
            let cached = traces.cached.filter(|it| it.is_alive);
            for table in cached.into_iter().flat_map(|it| tables(node, it, traces)) {
                *lacking.0.entry(table).or_default() += 1;
            }
        }
        lacking
    }

    pub fn encode(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let lacking = self.0.iter();
        writer.gauges(
            &LACKING,
            lacking.map(|(table, it)| ([("table", *table)], *it)),
        )
    }
}

/// Returns the tables in which the attachment should have elements and has none. Attachments of the
/// reference have rules instead of elements, so nothing is missing for them.
fn tables(node: &Node, attached: &Attached, traces: &Traces<'_>) -> Vec<&'static str> {
    if traces.links.is_empty() && traces.elements.is_empty() {
        return Vec::new();
    }
    let held: BTreeSet<_> = traces.elements.iter().map(|it| it.table).collect();
    let mut tables = node.expected_tables(attached);
    tables.retain(|it| *it != UNCHECKED && !held.contains(it));
    tables.sort_unstable();
    tables.dedup();
    tables
}

/// The table of bandwidth, which this module does not check. Only a trial shows whether the kernel
/// supports its elements, and a trial is too slow for each scrape.
const UNCHECKED: &str = bandwidth::TABLE;

const LACKING: Family = Family {
    name: "cni_attachments_lacking_elements",
    unit: None,
    help: "Live attachments without the elements in nf_tables that their configuration needs. \
           To restore them: cnitool reload.",
};
