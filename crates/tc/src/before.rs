//! What limits a link at some moment.

use netlink::{Filter, Handle, HeldBucket, Qdisc, QdiscKind};

use crate::limit::LARGEST_SEGMENT;

/// The limit of a link at some moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Before {
    pub(crate) held: Held,
    /// The limited class of an HTB.
    pub(crate) class: Option<HeldBucket>,
    /// Filters of an HTB.
    pub(crate) filters: Vec<Filter>,
}

impl Before {
    /// Returns what cannot change in place: handle and kind of the root (an HTB with its default
    /// class), and the filters.
    pub(crate) fn tree(&self) -> (Option<(Handle, Option<u32>)>, &[Filter]) {
        let root = self.held.root.as_ref().map(|it| match it.kind {
            QdiscKind::Htb { default, .. } => (it.handle, Some(default)),
            _ => (it.handle, None),
        });
        (root, &self.filters)
    }

    /// Returns whether a packet may wait that is longer than the burst of `other`. With that burst,
    /// a TBF would never send it.
    pub(crate) fn may_stop_in(&self, other: &Self) -> bool {
        let longest = self
            .bucket()
            .map(|it| it.largest().min(LARGEST_SEGMENT.into()));
        longest > other.bucket().map(HeldBucket::burst)
    }

    /// Returns the root TBF. The one below an HTB class sends packets of any length.
    fn bucket(&self) -> Option<&HeldBucket> {
        match &self.held.root.as_ref()?.kind {
            QdiscKind::Tbf(held) => Some(held),
            _ => None,
        }
    }
}

/// Qdiscs of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// The root, if this crate or the reference set it.
    pub root: Option<Qdisc>,
    /// The qdisc below a root TBF or the limited class.
    pub first: Option<Qdisc>,
    /// The qdisc below the TBF of the limited class.
    pub second: Option<Qdisc>,
}

impl Held {
    /// Returns the TBF of the limited class.
    pub fn splitter(&self) -> Option<&HeldBucket> {
        match &self.first.as_ref()?.kind {
            QdiscKind::Tbf(held) => Some(held),
            _ => None,
        }
    }
}
