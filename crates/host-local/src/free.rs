//! Chooses free addresses: neither leased nor in their cooldown (`reuseDelay`).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::SystemTime;

use anyhow::anyhow;
use cni::Error;

use crate::allocate::leasable;
use crate::cooldown::Cooldown;
use crate::files::Files;
use crate::range::RangeSet;

/// Returns the next address of `set` after `last` that is neither leased nor in its cooldown, in
/// the order of the round robin. Examines at most 1,024 addresses, so `None` does not mean that the
/// set is full.
pub(crate) fn near(files: &Files, set: &RangeSet, last: Option<IpAddr>) -> Option<IpAddr> {
    let now = SystemTime::now();
    let is_free = |it: &IpAddr| !files.leases.has(*it) && !files.cooldown.includes(*it, now);
    leasable(set, last).take(LOOKS).find(is_free)
}

/// Which addresses of a network are free at one point in time: neither leased nor in their
/// cooldown.
#[derive(Debug)]
pub(crate) struct Free<'a> {
    cooldown: &'a Cooldown,
    held: BTreeSet<IpAddr>,
    now: SystemTime,
}

impl<'a> Free<'a> {
    /// Creates the set of all addresses except `held` and those in their cooldown.
    pub fn all_but(held: BTreeSet<IpAddr>, cooldown: &'a Cooldown) -> Self {
        let now = SystemTime::now();
        Self {
            cooldown,
            held,
            now,
        }
    }

    /// Returns the free addresses of `set` in the order of the round robin after `last`.
    pub fn of(&self, set: &RangeSet, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
        leasable(set, last)
            .filter(|it| !self.held.contains(it) && !self.cooldown.includes(*it, self.now))
    }

    /// Returns the error for `set`, which has no free address. If some addresses are only in their
    /// cooldown, the code is 11, because a later ADD may succeed. If all are leased, it is 100.
    pub fn exhaustion(&self, set: &RangeSet) -> anyhow::Error {
        let mut size = 0;
        let all = leasable(set, None).inspect(|_| size += 1);
        let held = all.filter(|it| self.held.contains(it)).count();
        let reason = format!("no free address in {set}: {held} of {size} are held");
        if held == size {
            return anyhow!(reason);
        }
        let (released, delay) = (size - held, self.cooldown.delay);
        let delay = humantime::format_duration(delay);
        Error::TryAgain(format!(
            "{reason} and {released} were released less than {delay} ago (reuseDelay)"
        ))
        .into()
    }
}

/// Maximum number of addresses that `near` examines: all of a /22. Each takes about a microsecond.
const LOOKS: usize = 1_024;
