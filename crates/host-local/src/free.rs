//! Chooses free addresses: neither leased nor in their cooldown.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::SystemTime;

use anyhow::anyhow;
use cni::Error;

use crate::allocate::leasable;
use crate::files::Files;
use crate::range::RangeSet;

/// The free addresses of a network at one time.
#[derive(Debug)]
pub(crate) struct Free<'a> {
    files: &'a Files,
    /// The leased addresses; `None` stands for those of the index.
    held: Option<HashSet<IpAddr>>,
    now: SystemTime,
}

impl<'a> Free<'a> {
    /// Returns the addresses that are free by the index, if it is trusted.
    pub fn by_index(files: &'a Files) -> Option<Self> {
        let is_trusted = files.index.is_trusted();
        is_trusted.then(|| Self::new(files, None))
    }

    /// Returns all addresses except `held`.
    pub fn all_but(files: &'a Files, held: Vec<IpAddr>) -> Self {
        Self::new(files, Some(HashSet::from_iter(held)))
    }

    fn new(files: &'a Files, held: Option<HashSet<IpAddr>>) -> Self {
        let now = SystemTime::now();
        Self { files, held, now }
    }

    /// Returns the free addresses of `set` in the order of the round robin after `last`.
    pub fn of(&self, set: &RangeSet, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
        leasable(set, last)
            .filter(|it| !self.is_held(*it) && !self.files.cooldown.includes(*it, self.now))
    }

    /// Returns the error of an exhausted `set`: code 11 if some addresses are in their cooldown.
    pub fn exhaustion(&self, set: &RangeSet) -> anyhow::Error {
        let mut size = 0;
        let all = leasable(set, None).inspect(|_| size += 1);
        let held = all.filter(|it| self.is_held(*it)).count();
        let reason = format!("no free address in {set}: {held} of {size} are held");
        if held == size {
            return anyhow!(reason);
        }
        let (released, delay) = (size - held, self.files.cooldown.delay());
        let delay = humantime::format_duration(delay);
        let reason =
            format!("{reason} and {released} were released less than {delay} ago (reuseDelay)");
        Error::TryAgain { reason }.into()
    }

    fn is_held(&self, address: IpAddr) -> bool {
        match &self.held {
            Some(held) => held.contains(&address),
            None => self.files.index.is_taken(address),
        }
    }
}
