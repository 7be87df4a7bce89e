//! Records which attachments RELOAD, a verb of this suite, could not restore, and why.

use std::collections::{BTreeMap, BTreeSet};

use cni::{Attachment, note};
use upkeep::{MissingElements, MissingObjects, Outcome, Reloads};

/// Attachments that RELOAD could not restore, by their tags ([`Attachment::owner`]).
#[derive(Debug, Default)]
pub(super) struct Unrepaired(BTreeMap<String, Reason>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason {
    /// A plugin failed, no cache directory has the attachment's result, or elements are missing
    /// although RELOAD succeeded.
    Fault(String),
    /// The container itself deleted or replaced its interface, or removed all its addresses, so a
    /// repeated RELOAD leaves the attachment out. That is no fault of the node.
    LeftOut(String),
}

impl Unrepaired {
    /// Removes the attachments that `missing` concerns. Then adds those that the last RELOAD did
    /// not restore: `reloads` contains failures, `lacking` contains missing elements. Writes each
    /// new reason to standard error. Returns whether an attachment was added that was not in `self`
    /// before.
    pub fn update(
        &mut self,
        missing: &MissingObjects,
        (reloads, lacking): (&Reloads, &MissingElements),
    ) -> bool {
        let mut found = BTreeMap::new();
        for (owner, tables) in lacking {
            found.insert(owner.clone(), Reason::of_lack(owner, tables, reloads));
        }
        for (attachment, outcome) in &reloads.0 {
            if let Some(reason) = Reason::of(outcome) {
                found.insert(attachment.owner(), reason);
            }
        }
        for (owner, reason) in &found {
            if self.0.get(owner) != Some(reason) {
                note!("repair: {}: {}", name(owner), reason.text());
            }
        }
        let is_new = found.keys().any(|it| !self.0.contains_key(it));
        self.0.retain(|owner, _| !missing.concerns(owner));
        self.0.extend(found);
        is_new
    }

    /// Returns a value that concerns all attachments in `self`, to repeat their RELOAD; `None` if
    /// there are none.
    pub fn missing(&self) -> Option<MissingObjects> {
        let owners: BTreeSet<_> = self.0.keys().cloned().collect();
        (!owners.is_empty()).then(|| MissingObjects::of(owners))
    }

    /// Returns the tags of the attachments with [`Reason::LeftOut`].
    pub fn left_out(&self) -> BTreeSet<String> {
        let left_out = self
            .0
            .iter()
            .filter(|it| matches!(it.1, Reason::LeftOut(_)));
        left_out.map(|(owner, _)| owner.clone()).collect()
    }

    /// Returns the number of attachments with [`Reason::Fault`].
    pub fn faults(&self) -> usize {
        self.0.len() - self.left_out().len()
    }

    /// Returns whether an attachment that `missing` concerns has [`Reason::Fault`].
    pub fn has_fault_in(&self, missing: &MissingObjects) -> bool {
        let mut all = self.0.iter();
        all.any(|(owner, reason)| matches!(reason, Reason::Fault(_)) && missing.concerns(owner))
    }

    /// Returns a message with the number of attachments with [`Reason::Fault`] and the first
    /// reason; `None` if there are none.
    pub fn failure(&self) -> Option<String> {
        let mut all = self.0.iter();
        let (owner, reason) = all.find(|it| matches!(it.1, Reason::Fault(_)))?;
        let first = reason.text().replace('\n', "; ");
        let count = self.faults();
        Some(format!(
            "attachments that RELOAD could not restore: {count}; the first is {}: {first}",
            name(owner)
        ))
    }
}

impl Reason {
    fn of(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Failed(reason) => Some(Self::Fault(format!("RELOAD: {reason}"))),
            Outcome::InterfaceMissing(lost) => Some(Self::LeftOut(format!(
                "{lost}: left out until that changes"
            ))),
            Outcome::Reloaded | Outcome::Nothing | Outcome::Gone => None,
        }
    }

    fn of_lack(owner: &str, tables: &BTreeSet<&'static str>, reloads: &Reloads) -> Self {
        let tables: Vec<_> = tables.iter().copied().collect();
        let tables = tables.join(", ");
        let is_cached = reloads.0.iter().any(|it| it.0.owner() == owner);
        let why = if is_cached {
            "RELOAD did not restore it"
        } else {
            "no directory of cacheDirs has its result, so RELOAD cannot restore it"
        };
        Self::Fault(format!(
            "it has lost elements of nf_tables table {tables}, and {why}; a new pod in its place gets them"
        ))
    }

    fn text(&self) -> &str {
        let (Self::Fault(text) | Self::LeftOut(text)) = self;
        text
    }
}

fn name(owner: &str) -> String {
    Attachment::of_owner(owner).map_or_else(|| owner.to_owned(), |it| it.to_string())
}
