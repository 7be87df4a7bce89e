//! Searches free addresses: neither leased nor in their cooldown.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::SystemTime;

use anyhow::anyhow;
use cni::Error;

use crate::allocate;
use crate::directory::Directory;
use crate::index::Index;
use crate::range::RangeSet;
use crate::rest::Rest;

/// The free addresses of a network at one time.
#[derive(Debug)]
pub struct Vacancy<'a> {
    leases: &'a Directory,
    index: &'a Index,
    rest: &'a Rest,
    now: SystemTime,
    /// Addresses with files, once the directory was read; until then the index counts.
    held: Option<HashSet<IpAddr>>,
}

impl<'a> Vacancy<'a> {
    /// Creates the search; reads the directory at once if the index is not trusted.
    pub fn new(leases: &'a Directory, index: &'a Index, rest: &'a Rest) -> anyhow::Result<Self> {
        let mut vacancy = Self {
            leases,
            index,
            rest,
            now: SystemTime::now(),
            held: None,
        };
        if !index.is_trusted() {
            vacancy.read()?;
        }
        Ok(vacancy)
    }

    /// Uses these leased addresses instead of the directory or the index.
    pub fn holding(self, held: impl IntoIterator<Item = IpAddr>) -> Self {
        let held = Some(held.into_iter().collect());
        Self { held, ..self }
    }

    /// Returns the first free address of `set` after `last`, without reading the directory.
    pub fn next(&self, set: &RangeSet, last: Option<IpAddr>) -> Option<IpAddr> {
        let is_free = |it: &IpAddr| !self.is_held(*it) && !self.rest.holds(*it, self.now);
        allocate::leasable(set, last).find(is_free)
    }

    /// Searches like [`Self::next`], but reads the directory before it returns `None`.
    pub fn next_for_sure(
        &mut self,
        set: &RangeSet,
        last: Option<IpAddr>,
    ) -> anyhow::Result<Option<IpAddr>> {
        let next = self.next(set, last);
        if next.is_some() || self.held.is_some() {
            return Ok(next);
        }
        self.read()?;
        let next = self.next(set, last);
        if next.is_some() {
            self.index.distrust();
        }
        Ok(next)
    }

    /// Notes that `address` is taken although the index says otherwise, and reads the directory.
    pub fn correct(&mut self, address: IpAddr) -> anyhow::Result<()> {
        if self.held.is_none() {
            self.index.distrust();
            self.read()?;
        }
        self.held.get_or_insert_default().insert(address);
        Ok(())
    }

    /// Returns the error of an exhausted `set`: code 11 if some addresses are in their cooldown.
    pub fn exhaustion(&self, set: &RangeSet) -> anyhow::Error {
        let all: Vec<_> = allocate::leasable(set, None).collect();
        let held = all.iter().filter(|it| self.is_held(**it)).count();
        let (size, resting) = (all.len(), all.len() - held);
        let reason = format!("no free address in {set}: {held} of {size} are held");
        if resting == 0 {
            return anyhow!(reason);
        }
        let delay = humantime::format_duration(self.rest.delay());
        let reason =
            format!("{reason} and {resting} were released less than {delay} ago (reuseDelay)");
        Error::TryAgain { reason }.into()
    }

    fn is_held(&self, address: IpAddr) -> bool {
        match &self.held {
            Some(held) => held.contains(&address),
            None => self.index.is_taken(address),
        }
    }

    fn read(&mut self) -> anyhow::Result<()> {
        self.held = Some(self.leases.addresses()?.into_iter().collect());
        Ok(())
    }
}
