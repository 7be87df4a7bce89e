//! Parts of the node that could not be read.

use std::collections::BTreeMap;

use node::Part;

use crate::family::{Family, Metric};
use crate::label::Text;

/// For each part of the node: `None` if it was read, otherwise the reason why not.
#[derive(Debug)]
pub(crate) struct Unread(BTreeMap<&'static str, Option<String>>);

impl Unread {
    pub fn of(unread: Vec<(Part, String)>) -> Self {
        let mut parts = Self(PARTS.map(|it| (it, None)).into());
        for (part, reason) in unread {
            parts.add(name(part), reason);
        }
        parts
    }

    pub fn add(&mut self, part: &'static str, reason: String) {
        self.0.insert(part, Some(reason));
    }

    /// Returns whether all of `parts` were read.
    pub fn has_none_of(&self, parts: &[Part]) -> bool {
        let mut parts = parts.iter();
        parts.all(|it| self.0.get(name(*it)).is_none_or(Option::is_none))
    }

    /// Returns the reasons.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        self.0.values().flatten().map(String::as_str)
    }

    /// Returns 1 for each part that could not be read, and 0 for each other part.
    pub fn metric(&self) -> Metric {
        let parts = self.0.iter();
        let part = |name: &str| [("part", Text::new(name))];
        UNREAD.with(parts.map(|(name, it)| (part(name), u64::from(it.is_some()))))
    }
}

fn name(part: Part) -> &'static str {
    match part {
        Part::Configuration => "configuration",
        Part::Cache => "cache",
        Part::Leases => "leases",
        Part::Firewall => "firewall",
        Part::Links => "links",
        Part::Kernel => "kernel",
        Part::Policies => "policies",
    }
}

/// The plugins' log, which counts as a part of the node.
pub(crate) const LOG: &str = "log";

/// Parts that a snapshot reads.
const PARTS: [&str; 6] = ["configuration", "cache", "leases", "firewall", "links", LOG];

const UNREAD: Family = Family::gauges(
    "cni_unread",
    "1 if the part of the node could not be read. Metrics that need it are absent then.",
);
