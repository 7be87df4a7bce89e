//! Rules of the reference in a firewall.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::reference::Mark;

/// A table of a firewall with rules of the reference.
pub(super) struct Table {
    /// The command by which an administrator finds it.
    pub title: String,
    /// The chains or rules of single attachments.
    pub remnants: Vec<Remnant>,
    /// It has rules that all attachments share.
    pub is_shared: bool,
    /// Removes these in one transaction. If no others remain, it also removes the shared rules.
    pub remove: Box<Remove>,
}

type Remove = dyn Fn(&[&Remnant]) -> anyhow::Result<()>;

/// A chain or rule of one attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remnant {
    /// Its identifier in the table.
    pub name: String,
    /// Its owner, in the reference's own words.
    pub owner: String,
    pub mark: Mark,
    /// Addresses in its rules, of the sandbox and perhaps of the host.
    pub addresses: BTreeSet<IpAddr>,
}
