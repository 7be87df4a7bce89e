//! Rules of the Go plugins in a firewall.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::reference::Mark;

/// A table of a firewall with rules of the Go plugins.
pub(super) struct Table {
    /// The command with which an administrator lists the table.
    pub title: String,
    /// The chains or rules of single attachments.
    pub remnants: Vec<Remnant>,
    /// Whether the table has rules that all attachments share.
    pub is_shared: bool,
    /// Bridges that the rules in `CNI-ISOLATION-STAGE-1` and `-2` isolate. All attachments share
    /// these rules.
    pub bridges: BTreeSet<String>,
    /// Removes the given `remnants` and, with [`Shared::Remove`], the rules that all attachments
    /// share. Removes all of them in one transaction.
    pub remove: Box<Remove>,
}

impl Table {
    /// Returns whether the table has rules of the Go plugins.
    pub fn has_rules(&self) -> bool {
        !self.remnants.is_empty() || self.is_shared
    }
}

type Remove = dyn Fn(&[&Remnant], Shared) -> anyhow::Result<()>;

/// Whether `Table::remove` keeps or removes the rules that all attachments share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shared {
    Keep,
    Remove,
}

/// A chain or rule that a Go plugin made for one attachment, live or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remnant {
    /// The name of the chain, or the identifier of the rule in the table.
    pub name: String,
    /// Text that names the attachment: the comment of the Go plugin's rule or, without a comment,
    /// the address. `no rule jumps to it` for a chain without such a comment.
    pub owner: String,
    pub mark: Mark,
    /// Addresses in the rules: those of the sandbox, and perhaps addresses of the host, such as
    /// 127.0.0.1.
    pub addresses: BTreeSet<IpAddr>,
}
