//! Reads the limits of all links with their counters.

use std::collections::BTreeMap;

use netlink::{Connection, CountedQdisc, Handle, QdiscKind, QueueCounters};

use crate::Error;
use crate::link_egress::{CLASS, is_known};

/// The egress limit of a link, with the counters of the limited packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedLimit {
    /// The rate in bytes per second.
    pub rate: u64,
    /// Counters of the limited packets.
    pub counters: QueueCounters,
}

/// Returns the egress limits that this crate or the Go plugin `bandwidth` set, by the index of the
/// link. Omits the HTB limits of versions 1.5.0 and 1.5.1 of the Go plugin. A limit may apply to
/// all traffic of its link or to a part of the traffic.
///
/// # Errors
/// [`Error::Netlink`].
pub fn counted_limits(connection: &Connection) -> Result<BTreeMap<u32, CountedLimit>, Error> {
    let qdiscs = connection.counted_qdiscs()?;
    let is_root = |it: &&CountedQdisc| it.parent == Handle::ROOT && is_known(&it.qdisc);
    let roots: Vec<_> = qdiscs.iter().filter(is_root).collect();
    let is_htb = |it: &&&CountedQdisc| matches!(it.qdisc.kind, QdiscKind::Htb { .. });
    let by_class: Vec<_> = roots.iter().filter(is_htb).map(|it| it.link).collect();
    let classes = connection.counted_classes(&by_class, CLASS)?;
    let counted = roots.iter().copied().chain(&classes);
    let mut limits: BTreeMap<_, _> = counted.filter_map(CountedLimit::of).collect();
    // An HTB class does not count packets that are dropped after they have waited. The TBF below
    // the class (`splitter`) counts them.
    for splitter in qdiscs.iter().filter(|it| it.parent == CLASS) {
        if let Some(limit) = limits.get_mut(&splitter.link)
            && by_class.contains(&splitter.link)
        {
            limit.counters.dropped = splitter.counters.dropped;
        }
    }
    Ok(limits)
}

impl CountedLimit {
    /// Returns the link's index and the limit if `counted` is a TBF or an HTB class, and `None` if
    /// it is another qdisc.
    fn of(counted: &CountedQdisc) -> Option<(u32, Self)> {
        let bucket = match counted.qdisc.kind {
            QdiscKind::Tbf(bucket) => Some(bucket),
            QdiscKind::Htb { class, .. } => class,
            _ => None,
        };
        let limit = Self {
            rate: bucket?.rate,
            counters: counted.counters,
        };
        Some((counted.link, limit))
    }
}
