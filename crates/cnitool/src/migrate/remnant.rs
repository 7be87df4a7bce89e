//! Rules of the reference in a firewall.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::reference::Mark;

/// A table of a firewall with rules of the reference.
pub(super) struct Table {
    /// The command with which an administrator lists the table.
    pub title: String,
    /// The chains or rules of single attachments.
    pub remnants: Vec<Remnant>,
    /// Whether the table has rules that all attachments share.
    pub is_shared: bool,
    /// Bridges that the shared rules isolate.
    pub bridges: BTreeSet<String>,
    /// Function that removes the given remnants, and the shared rules if the caller asks for it, in
    /// one transaction.
    pub remove: Box<Remove>,
}

impl Table {
    /// Returns whether the table has rules of the reference.
    pub fn has_rules(&self) -> bool {
        !self.remnants.is_empty() || self.is_shared
    }
}

type Remove = dyn Fn(&[&Remnant], Shared) -> anyhow::Result<()>;

/// Whether a removal keeps or removes the rules that all attachments share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shared {
    Keep,
    Remove,
}

/// A chain or rule of one attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remnant {
    /// The name of the chain, or the identifier of the rule in the table.
    pub name: String,
    /// The owner, as the reference's comment names it.
    pub owner: String,
    pub mark: Mark,
    /// Addresses in the rules: those of the sandbox, and perhaps of the host.
    pub addresses: BTreeSet<IpAddr>,
}
