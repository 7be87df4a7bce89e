//! State of the suite's tables in `nf_tables`.

use node::{Condition, Node, TableState};

use crate::family::{Family, Metric};
use crate::label::Text;

/// Returns metrics of each table of the suite: its condition (complete, damaged or absent), and the
/// number of its elements.
pub(crate) fn read(node: &Node) -> Vec<Metric> {
    let tables = node.tables.iter();
    let conditions = tables.clone().flat_map(|table| {
        CONDITIONS.map(|(condition, name)| {
            let [family, table_name] = labels(table);
            let is_now = u64::from(table.condition == condition);
            let labels = [family, table_name, ("condition", Text::new(name))];
            (labels, is_now)
        })
    });
    let elements = tables.map(|it| (labels(it), it.elements));
    vec![CONDITION.with(conditions), ELEMENTS.with(elements)]
}

fn labels(table: &TableState) -> [(&'static str, Text); 2] {
    [("family", table.family), ("table", table.name)].map(|(name, it)| (name, Text::new(it)))
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
