//! Live attachments without the elements in `nf_tables` that they should have.

use std::collections::{BTreeMap, BTreeSet};

use facts::Elements;
use node::{Node, Traces};

use crate::family::{Family, Metric};

/// Counts for each table the live attachments that should have elements in the table and have none.
/// Leaves out a table without which ADD succeeds if the kernel does not support it: only a dry run
/// shows that, and it is too slow for each scrape.
pub(crate) fn count(node: &Node, traces: &BTreeMap<String, Traces<'_>>) -> Vec<Metric> {
    let checked = node.tables.iter().map(|it| it.name);
    let checked = checked.filter(|it| node::elements_in(it).is_none_or(Elements::is_required));
    let mut lacking: BTreeMap<_, u64> = checked.map(|it| ([it], 0)).collect();
    for traces in traces.values() {
        let tables: BTreeSet<_> = traces.lacking_tables(node).into_iter().collect();
        for table in tables {
            lacking.entry([table]).and_modify(|it| *it += 1);
        }
    }
    vec![LACKING.by(["table"], lacking)]
}

const LACKING: Family = Family::gauges(
    "cni_attachments_lacking_elements",
    "Live attachments without the elements in nf_tables that their configuration needs. To restore \
     them: cnitool reload.",
);
