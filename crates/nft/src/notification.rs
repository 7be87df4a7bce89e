//! Reads the kernel's notifications of deletions and new elements in `nf_tables`.

use crate::elements::read_elements;
use crate::raw::{
    CHAIN_NAME, DELETE_CHAIN, DELETE_ELEMENTS, DELETE_RULE, DELETE_SET, DELETE_TABLE, ELEMENTS_SET,
    NEW_ELEMENTS, RULE_CHAIN, RawMessage, TABLE,
};
use crate::{Element, Family, Table};

/// A notification of the kernel about `nf_tables`, or the loss of notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// One of the caller's tables, or an object in it, was deleted.
    Deletion(Deletion),
    /// Elements were added to one of the caller's tables.
    Addition {
        /// The table's family.
        family: Family,
        /// The table's name.
        table: &'static str,
        /// The added elements.
        elements: Vec<Element>,
    },
    /// Notifications were lost, because the socket overflowed or a datagram could not be parsed.
    Lost,
    /// Any other notification.
    Other,
}

/// The deletion of a table or of an object in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// The table's family.
    pub family: Family,
    /// The table's name.
    pub table: &'static str,
    /// The deleted object, or the table itself.
    pub deleted: Deleted,
}

/// What was deleted.
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
        /// The rule's comment; `None` for a rule without one.
        comment: Option<String>,
    },
    /// Elements of one set.
    Elements(Vec<Element>),
}

impl Notification {
    /// Parses a notification. Returns [`Self::Other`] for a table that is not in `tables`, and for
    /// any notification except deletions and new elements.
    pub(crate) fn read(report: &RawMessage, tables: &[Table]) -> Self {
        let name = report.text(TABLE);
        let is_meant = |it: &&Table| it.name == name && it.family.number() == report.family;
        let Some(table) = tables.iter().find(is_meant) else {
            return Self::Other;
        };
        let elements = || read_elements(&report.text(ELEMENTS_SET), report);
        let deleted = match report.kind {
            NEW_ELEMENTS => {
                return Self::Addition {
                    family: table.family,
                    table: table.name,
                    elements: elements(),
                };
            }
            DELETE_TABLE => Deleted::Table,
            DELETE_SET => Deleted::Set,
            DELETE_CHAIN => Deleted::Chain(report.text(CHAIN_NAME)),
            DELETE_RULE => Deleted::Rule {
                chain: report.text(RULE_CHAIN),
                comment: report.rule_comment(),
            },
            DELETE_ELEMENTS => Deleted::Elements(elements()),
            _ => return Self::Other,
        };
        Self::Deletion(Deletion {
            family: table.family,
            table: table.name,
            deleted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Attributes;

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
            match Notification::read(&report, std::slice::from_ref(&table)) {
                Notification::Deletion(it) => Some(it.deleted),
                _ => None,
            }
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
    fn elements_are_heard_of_the_own_table_alone() {
        let own = Table {
            family: Family::Inet,
            name: "cni-portmap",
            sets: Vec::new(),
            chains: Vec::new(),
        };
        let report = |kind, table| RawMessage::new(kind, 1, Attributes::new().text(TABLE, table));
        let is_heard = |report: &RawMessage| {
            Notification::read(report, std::slice::from_ref(&own)) != Notification::Other
        };
        assert!(is_heard(&report(DELETE_ELEMENTS, "cni-portmap")));
        assert!(!is_heard(&report(DELETE_ELEMENTS, "cni-another")));
        assert!(is_heard(&report(NEW_ELEMENTS, "cni-portmap")));
        assert!(!is_heard(&report(NEW_ELEMENTS, "cni-another")));
        let torn = netlink::Message {
            kind: DELETE_ELEMENTS,
            flags: 0,
            body: vec![1, 0, 0, 0, 200],
        };
        assert!(!is_heard(&RawMessage::read(&torn).unwrap()));
    }
}
