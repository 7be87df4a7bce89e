//! Which addresses can be had: what is held and what rests, so that a free one is found.

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

/// The addresses of a network at one moment.
#[derive(Debug)]
pub(crate) struct Vacancy<'a> {
    leases: &'a Directory,
    index: &'a Index,
    rest: &'a Rest,
    now: SystemTime,
    /// What the directory holds, once it was read; until then the index is believed.
    held: Option<HashSet<IpAddr>>,
}

impl<'a> Vacancy<'a> {
    /// Reads the directory at once where there is no index to believe.
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

    /// The first address of `set` after `last` that can be had, as far as is known without
    /// reading the directory.
    pub fn next(&self, set: &RangeSet, last: Option<IpAddr>) -> Option<IpAddr> {
        let is_free = |address| !self.is_held(address) && !self.rest.holds(address, self.now);
        allocate::next_free(set, last, |address| !is_free(address))
    }

    /// As [`Self::next`], but before it says that there is none it reads the directory.
    pub fn next_for_sure(
        &mut self,
        set: &RangeSet,
        last: Option<IpAddr>,
    ) -> anyhow::Result<Option<IpAddr>> {
        match self.next(set, last) {
            None if self.held.is_none() => {
                self.read()?;
                Ok(self.next(set, last))
            }
            next => Ok(next),
        }
    }

    /// `address` was found taken, against expectation: the directory is read.
    pub fn correct(&mut self, address: IpAddr) -> anyhow::Result<()> {
        if self.held.is_none() {
            self.index.distrust();
            self.read()?;
        }
        self.held.get_or_insert_default().insert(address);
        Ok(())
    }

    /// Why `set` has nothing to give, once that is sure: what is not held rests.
    pub fn exhaustion(&self, set: &RangeSet) -> anyhow::Error {
        let leasable = |address: &&IpAddr| set.is_leasable(**address);
        let held = self.held.iter().flatten().filter(leasable).count() as u128;
        let size = set.size();
        if held >= size {
            return anyhow!("no free address in {set}: {held} of {size} are held");
        }
        let delay = humantime::format_duration(self.rest.delay());
        let resting = size - held;
        let reason = format!(
            "no free address in {set}: {held} of {size} are held and {resting} were released less than {delay} ago (reuseDelay)"
        );
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
