//! State of the suite's tables in `nf_tables`.

use std::fmt;

use node::{Condition, TableState};

use crate::family::{Family, Writer, number};

/// State of all tables.
#[derive(Debug)]
pub(crate) struct Tables(pub Vec<TableState>);

impl Tables {
    pub fn encode(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let conditions = self.0.iter().flat_map(|table| {
            CONDITIONS.map(|(condition, name)| {
                let [family, table_name] = labels(table);
                let is_now = u64::from(table.condition == condition);
                ([family, table_name, ("condition", name)], is_now)
            })
        });
        writer.gauges(&CONDITION, conditions)?;
        let elements = self.0.iter().map(|it| (labels(it), number(it.elements)));
        writer.gauges(&ELEMENTS, elements)
    }
}

fn labels(table: &TableState) -> [(&'static str, &'static str); 2] {
    [("family", table.family), ("table", table.name)]
}

const CONDITIONS: [(Condition, &str); 3] = [
    (Condition::Complete, "complete"),
    (Condition::Damaged, "damaged"),
    (Condition::Absent, "absent"),
];

const CONDITION: Family = Family {
    name: "cni_table_condition",
    unit: None,
    help: "1 for the condition that the table of nf_tables has now. Damaged: another program \
           changed its rules. Absent: no plugin needed it yet, or another program deleted it.",
};

const ELEMENTS: Family = Family {
    name: "cni_table_elements",
    unit: None,
    help: "Elements in all sets of the table of nf_tables.",
};
