//! Parts of the node that could not be read.

use node::Part;

use crate::family::{Family, Metric};
use crate::label::Text;

/// The parts of the node that could not be read, with the reasons.
#[derive(Debug)]
pub(crate) struct Unread(Vec<(&'static str, String)>);

impl Unread {
    pub fn of(unread: Vec<(Part, String)>) -> Self {
        let unread = unread.into_iter();
        Self(unread.map(|(part, reason)| (name(part), reason)).collect())
    }

    pub fn add(&mut self, part: &'static str, reason: String) {
        self.0.push((part, reason));
    }

    /// Returns whether all of `parts` were read.
    pub fn has_none_of(&self, parts: &[Part]) -> bool {
        !parts.iter().any(|it| self.has(name(*it)))
    }

    fn has(&self, part: &str) -> bool {
        self.0.iter().any(|it| it.0 == part)
    }

    /// Returns why the parts could not be read.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, reason)| reason.as_str())
    }

    /// Returns a sample for each part in [`PARTS`]: 1 if the part could not be read, otherwise 0.
    pub fn metric(&self) -> Metric {
        let part = |name: &str| [("part", Text::new(name))];
        UNREAD.with(PARTS.map(|it| (part(it), u64::from(self.has(it)))))
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

/// Name of the plugins' log, which counts as a part of the node.
pub(crate) const LOG: &str = "log";

/// Names of the parts that a snapshot reads.
const PARTS: [&str; 6] = ["cache", "configuration", "firewall", "leases", "links", LOG];

const UNREAD: Family = Family::gauges(
    "cni_unread",
    "1 if the part of the node could not be read. Metrics that need it are absent then.",
);
