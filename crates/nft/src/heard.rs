//! Reads notifications of deletions.

use crate::element::Element;
use crate::elements::read_elements;
use crate::raw::{
    CHAIN_NAME, DELETE_CHAIN, DELETE_ELEMENTS, DELETE_RULE, DELETE_SET, DELETE_TABLE, ELEMENTS_SET,
    RULE_CHAIN, RawMessage, TABLE,
};
use crate::table::{Family, Table};

/// A notification of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// An object of one of the caller's tables was deleted.
    Deletion(Deletion),
    /// Notifications were lost, because the socket overflowed.
    Lost,
    /// Anything else.
    Other,
}

/// The deletion of an object of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// The table's family.
    pub family: Family,
    /// The table's name.
    pub table: &'static str,
    /// What was deleted.
    pub deleted: Deleted,
}

/// A deleted object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// The table with its content.
    Table,
    /// A set with its elements.
    Set,
    /// The chain of this name.
    Chain(String),
    /// A rule.
    Rule {
        /// The name of the rule's chain.
        chain: String,
        /// The rule's comment.
        comment: Option<String>,
    },
    /// Elements of one set.
    Elements(Vec<Element>),
}

impl Deletion {
    /// Reads a notification; `None` if it reports no deletion in one of `tables`.
    pub(crate) fn read(report: &RawMessage, tables: &[Table]) -> Option<Self> {
        if !DELETIONS.contains(&report.kind) {
            return None;
        }
        let name = report.text(TABLE);
        let is_meant = |it: &&Table| it.name == name && it.family.number() == report.family;
        let table = tables.iter().find(is_meant)?;
        Some(Self {
            family: table.family,
            table: table.name,
            deleted: match report.kind {
                DELETE_TABLE => Deleted::Table,
                DELETE_SET => Deleted::Set,
                DELETE_CHAIN => Deleted::Chain(report.text(CHAIN_NAME)),
                DELETE_RULE => Deleted::Rule {
                    chain: report.text(RULE_CHAIN),
                    comment: report.rule_comment(),
                },
                _ => Deleted::Elements(read_elements(&report.text(ELEMENTS_SET), report)),
            },
        })
    }
}

const DELETIONS: [u16; 5] = [
    DELETE_TABLE,
    DELETE_SET,
    DELETE_CHAIN,
    DELETE_RULE,
    DELETE_ELEMENTS,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Attributes;
    use crate::raw::NEW_ELEMENTS;

    #[test]
    fn deletion_is_read_for_the_table_of_its_family_only() {
        let table = Table {
            family: Family::Bridge,
            name: "cni-bandwidth",
            sets: Vec::new(),
            chains: Vec::new(),
        };
        let report = |kind, family| {
            let attributes = Attributes::new().text(TABLE, "cni-bandwidth");
            let report = RawMessage::new(kind, family, attributes.text(CHAIN_NAME, "prerouting"));
            Deletion::read(&report, std::slice::from_ref(&table)).map(|it| it.deleted)
        };
        let chain = Deleted::Chain("prerouting".to_owned());
        assert_eq!(report(DELETE_CHAIN, 7), Some(chain));
        assert_eq!(report(DELETE_TABLE, 7), Some(Deleted::Table));
        assert_eq!(
            report(DELETE_ELEMENTS, 7),
            Some(Deleted::Elements(Vec::new()))
        );
        assert_eq!(report(DELETE_TABLE, 1), None);
        assert_eq!(report(NEW_ELEMENTS, 7), None);
    }

    #[test]
    fn deletion_is_heard_of_the_own_table_alone() {
        let own = Table {
            family: Family::Inet,
            name: "cni-portmap",
            sets: Vec::new(),
            chains: Vec::new(),
        };
        let report = |kind, table| RawMessage::new(kind, 1, Attributes::new().text(TABLE, table));
        let is_heard =
            |report: &RawMessage| Deletion::read(report, std::slice::from_ref(&own)).is_some();
        assert!(is_heard(&report(DELETE_ELEMENTS, "cni-portmap")));
        assert!(!is_heard(&report(DELETE_ELEMENTS, "cni-another")));
        assert!(!is_heard(&report(NEW_ELEMENTS, "cni-portmap")));
        let torn = RawMessage::read(DELETE_ELEMENTS, &[1, 0, 0, 0, 200]).unwrap();
        assert!(!is_heard(&torn));
    }
}
