//! Reads what a table holds.

use std::collections::HashSet;

use netlink_packet_netfilter::nftables::ListAttribute;

use crate::connection::Connection;
use crate::element::Element;
use crate::error::Error;
use crate::reply::Reply;
use crate::table::{Set, Table};

impl Connection {
    /// Returns the element of `table` with the key of `wanted`, of any owner.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn holder(&self, table: &Table, wanted: &Element) -> Result<Option<Element>, Error> {
        match self.socket.get(table.get_element(wanted)) {
            Err(error) if error.is_not_found() => Ok(None),
            replies => {
                let replies = replies?;
                let mut found = replies.iter().flat_map(|it| read_elements(&wanted.set, it));
                Ok(found.next())
            }
        }
    }

    /// Returns all elements of `set`; empty if the table does not exist.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn elements_of(&self, table: &Table, set: &Set) -> Result<Vec<Element>, Error> {
        match self.socket.dump(table.list_elements(set)) {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            replies => {
                let replies = replies?;
                let elements = replies.iter().flat_map(|it| read_elements(set.name, it));
                // The kernel lists elements twice if the hash table is resized meanwhile.
                let mut told = HashSet::new();
                let elements = elements.filter(|it| told.insert(it.clone()));
                Ok(elements.collect())
            }
        }
    }

    /// Returns all elements of `table` in the order of its sets; empty if the table does not exist.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn elements(&self, table: &Table) -> Result<Vec<Element>, Error> {
        let mut elements = Vec::new();
        for set in table.sets.iter().filter(|it| !it.is_of_counts()) {
            elements.extend(self.elements_of(table, set)?);
        }
        Ok(elements)
    }

    /// Returns the comments of the chain's rules, in their order.
    pub(crate) fn rules_of(
        &self,
        table: &Table,
        chain: &str,
    ) -> Result<Vec<Option<String>>, Error> {
        let replies = self.socket.dump(table.list_rules(chain))?;
        let rules = replies.into_iter().filter_map(|reply| match reply {
            Reply::Rule(comment) => Some(comment),
            _ => None,
        });
        Ok(rules.collect())
    }
}

pub(crate) fn read_elements(set: &str, reply: &Reply) -> Vec<Element> {
    let Reply::Elements(elements) = reply else {
        return Vec::new();
    };
    let elements = elements.iter().filter_map(|element| match element {
        ListAttribute::Element(attributes) => Element::read(set, attributes),
        _ => None,
    });
    elements.collect()
}
