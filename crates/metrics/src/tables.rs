//! State of the suite's tables in `nf_tables`.

use node::{Condition, Node};

use crate::family::{Family, Metric};

/// Returns metrics of each table of the suite: its condition (complete, damaged or absent), and the
/// number of its elements.
pub(crate) fn read(node: &Node) -> Vec<Metric> {
    let tables = node.tables.iter();
    let conditions = tables.clone().flat_map(|table| {
        CONDITIONS.map(|(condition, name)| {
            let is_now = u64::from(table.condition == condition);
            ([table.family, table.name, name], is_now)
        })
    });
    let elements = tables.map(|it| ([it.family, it.name], it.elements));
    vec![
        CONDITION.by(["family", "table", "condition"], conditions),
        ELEMENTS.by(["family", "table"], elements),
    ]
}

const CONDITIONS: [(Condition, &str); 3] = [
    (Condition::Complete, "complete"),
    (Condition::Damaged, "damaged"),
    (Condition::Absent, "absent"),
];

const CONDITION: Family = Family::gauges(
    "cni_table_condition",
    "1 for the condition that the table of nf_tables has now. Damaged: another program changed its \
     rules. Absent: no plugin needed it yet, or another program deleted it.",
);

const ELEMENTS: Family = Family::gauges(
    "cni_table_elements",
    "Elements in all sets of the table of nf_tables.",
);
