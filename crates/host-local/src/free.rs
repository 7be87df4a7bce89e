//! Chooses free addresses: neither leased nor in their cooldown.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::SystemTime;

use anyhow::anyhow;
use cni::Error;

use crate::allocate::leasable;
use crate::cooldown::Cooldown;
use crate::files::Files;
use crate::index::Index;
use crate::range::RangeSet;

/// The free addresses of a network at one time.
#[derive(Debug)]
pub(crate) struct Free<'a> {
    held: Held<'a>,
    cooldown: &'a Cooldown,
    now: SystemTime,
}

/// Source of the leased addresses.
#[derive(Debug)]
enum Held<'a> {
    Index(&'a Index),
    Addresses(HashSet<IpAddr>),
}

impl<'a> Free<'a> {
    /// Returns the addresses that are free by the index, if it is trusted.
    pub fn by_index(files: &'a Files) -> Option<Self> {
        let index = &files.index;
        let is_trusted = index.is_trusted();
        is_trusted.then(|| Self::new(files, Held::Index(index)))
    }

    /// Returns the addresses that have no file in the directory.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn by_name(files: &'a Files) -> anyhow::Result<Self> {
        Ok(Self::all_but(files, files.leases.addresses()?))
    }

    /// Returns all addresses except `held`.
    pub fn all_but(files: &'a Files, held: Vec<IpAddr>) -> Self {
        Self::new(files, Held::Addresses(HashSet::from_iter(held)))
    }

    fn new(files: &'a Files, held: Held<'a>) -> Self {
        Self {
            held,
            cooldown: &files.cooldown,
            now: SystemTime::now(),
        }
    }

    /// Returns the free addresses of `set` in the order of the round robin after `last`.
    pub fn of(&self, set: &RangeSet, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
        leasable(set, last)
            .filter(|it| !self.is_held(*it) && !self.cooldown.includes(*it, self.now))
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
        let (released, delay) = (size - held, self.cooldown.delay());
        let delay = humantime::format_duration(delay);
        let reason =
            format!("{reason} and {released} were released less than {delay} ago (reuseDelay)");
        Error::TryAgain { reason }.into()
    }

    fn is_held(&self, address: IpAddr) -> bool {
        match &self.held {
            Held::Index(index) => index.is_taken(address),
            Held::Addresses(held) => held.contains(&address),
        }
    }
}
