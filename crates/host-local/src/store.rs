//! The leases of one network: lookup, creation and release by one process at a time.
//!
//! The files are authoritative. The trusted index names the files to read, and each is read before
//! it is used. If they disagree or the index is not trusted, all files are read instead.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;

use anyhow::Context as _;
use cni::{Attachment, NetworkName, note};

use crate::directory::{Directory, Reservation};
use crate::index::Index;
use crate::lease::{Holder, Lease};
use crate::lock::Lock;
use crate::rebuild::{EarlierBoot, rebuild};
use crate::rest::Rest;
use crate::scratch::make_directory;
use crate::storage::Storage;
use crate::vacancy::Vacancy;

/// The locked leases of one network.
#[derive(Debug)]
pub struct Store {
    leases: Directory,
    index: Index,
    rest: Rest,
    access: Access,
    // The lock must be the last field, so it is dropped last.
    _lock: Lock,
}

/// Purpose of an open store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Change,
    Inspect,
}

impl Store {
    /// Locks the leases of `network`, making the directories where they are missing.
    ///
    /// # Errors
    /// The directories cannot be made, or another process keeps the lock for too long.
    pub fn open(storage: &Storage, network: &NetworkName) -> anyhow::Result<Self> {
        for path in [
            storage.lease_directory(network),
            storage.index_directory(network),
        ] {
            make_directory(&path)
                .with_context(|| format!("create directory {}", path.display()))?;
        }
        Ok(Self::lock(storage, network)?.in_step(storage.earlier_boot))
    }

    /// Locks the leases of `network`; returns `None` if it never had any.
    pub(crate) fn open_existing(
        storage: &Storage,
        network: &NetworkName,
    ) -> anyhow::Result<Option<Self>> {
        let store = Self::inspect(storage, network)?;
        Ok(store.map(|store| store.in_step(storage.earlier_boot)))
    }

    /// Locks the leases like [`Self::open_existing`], but changes neither leases nor the index.
    pub(crate) fn inspect(
        storage: &Storage,
        network: &NetworkName,
    ) -> anyhow::Result<Option<Self>> {
        let directory = storage.lease_directory(network);
        match directory.try_exists() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("look for {}", directory.display()));
            }
        }
        // Without a lock file there are no leases; creating one could fail on a full disk.
        let (leases, ..) = storage.parts(network);
        if !directory.join(LOCK).exists() && leases.addresses()?.is_empty() {
            return Ok(None);
        }
        Self::lock(storage, network).map(Some)
    }

    fn lock(storage: &Storage, network: &NetworkName) -> anyhow::Result<Self> {
        let file = storage.lease_directory(network).join(LOCK);
        let lock = Lock::take(&file, storage.lock_timeout)?;
        let (leases, index, rest) = storage.parts(network);
        Ok(Self {
            leases,
            index,
            rest,
            access: Access::Inspect,
            _lock: lock,
        })
    }

    /// Rebuilds an index that is not trusted. If that fails, the files are read instead.
    fn in_step(mut self, earlier: EarlierBoot) -> Self {
        self.access = Access::Change;
        if !self.index.is_trusted() {
            self.rest.tidy();
            if let Err(error) = rebuild(&self.leases, &self.index, earlier) {
                note(format_args!(
                    "index of leases: {error:#}; going on without it"
                ));
            }
        }
        self
    }

    /// The leases of `attachment`: its own or, where there are none, those that an old
    /// version of the reference made for its container.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn leases_of(&self, attachment: &Attachment) -> anyhow::Result<Vec<Lease>> {
        let own = Holder::of(attachment);
        let asked = [own.clone(), Holder::old_entry_of(attachment)];
        let mut leases = match self.indexed(&asked) {
            Some(leases) => leases,
            None => self.scan(|holder| asked.contains(holder))?,
        };
        if leases.iter().any(|lease| lease.holder == own) {
            leases.retain(|lease| lease.holder == own);
        }
        Ok(leases)
    }

    /// Every lease whose holder is none of `listed`.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn leases_except(&self, listed: &HashSet<Holder>) -> anyhow::Result<Vec<Lease>> {
        let is_stale = |holder: &Holder| !listed.contains(holder);
        let holders = self.index.is_trusted().then(|| self.index.holders());
        let indexed = holders.and_then(Result::ok).and_then(|mut holders| {
            holders.retain(is_stale);
            self.indexed(&holders)
        });
        indexed.map_or_else(|| self.scan(is_stale), Ok)
    }

    /// The lease of `address`, if there is one that names its holder.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn lease(&self, address: IpAddr) -> anyhow::Result<Option<Lease>> {
        self.leases.lease(address)
    }

    /// Returns the free addresses.
    pub(crate) fn vacancy(&self) -> anyhow::Result<Vacancy<'_>> {
        Vacancy::new(&self.leases, &self.index, &self.rest)
    }

    /// Makes `lease`, if its address is free.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn reserve(&self, lease: &Lease) -> anyhow::Result<Reservation> {
        let reservation = self.leases.create(lease)?;
        if reservation == Reservation::Made {
            self.index.insert(lease, &self.leases);
        }
        Ok(reservation)
    }

    /// Releases `leases` and starts the cooldown of their addresses; some may be free already.
    ///
    /// # Errors
    /// All leases that could not be released; the others are released.
    pub fn release(&self, leases: &[Lease]) -> anyhow::Result<()> {
        // The cooldown starts first: a leased address may have one, a free address must.
        for lease in leases {
            self.rest.begin(lease.address);
        }
        self.cancel(leases)
    }

    /// Releases `leases` without a cooldown, since no container used their addresses.
    ///
    /// # Errors
    /// All leases that could not be released; the others are released.
    pub fn cancel(&self, leases: &[Lease]) -> anyhow::Result<()> {
        if leases.is_empty() {
            return Ok(());
        }
        let outcomes = self.leases.remove(leases.iter().map(|it| it.address));
        let removed = leases.iter().zip(&outcomes);
        self.index
            .remove(removed.filter_map(|(lease, outcome)| outcome.is_ok().then_some(lease)));
        cni::all(outcomes)
    }

    /// Returns the last address that range set `set` provided; `None` if unknown.
    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        self.leases.last_reserved(set)
    }

    /// Remembers the last address that range set `set` provided.
    pub(crate) fn set_last_reserved(&self, set: usize, address: IpAddr) -> anyhow::Result<()> {
        self.leases.set_last_reserved(set, address)
    }

    /// Returns the leases of `holders` in the index, if the files agree.
    fn indexed(&self, holders: &[Holder]) -> Option<Vec<Lease>> {
        if !self.index.is_trusted() {
            return None;
        }
        let mut leases = Vec::new();
        for holder in holders {
            let Ok(found) = self.agreed(holder) else {
                self.index.distrust();
                return None;
            };
            leases.extend(found);
        }
        Some(leases)
    }

    fn agreed(&self, holder: &Holder) -> anyhow::Result<Vec<Lease>> {
        let records = self.index.records_of(holder)?.into_iter().map(|record| {
            let lease = self.leases.lease(record.address)?;
            let lease = lease.filter(|lease| lease.holder == *holder);
            lease.context("the file does not say what its record says")
        });
        records.collect()
    }

    /// Reads all leases. Reports and skips an unreadable file and one without a holder, so that it
    /// does not block the other leases.
    fn scan(&self, is_wanted: impl Fn(&Holder) -> bool) -> anyhow::Result<Vec<Lease>> {
        let mut leases = Vec::new();
        for address in self.leases.addresses()? {
            match self.leases.lease(address) {
                Ok(lease) => leases.extend(lease.filter(|lease| is_wanted(&lease.holder))),
                Err(error) => note(format_args!("{error:#}; it is left as it is")),
            }
        }
        Ok(leases)
    }
}

/// Name of the lock file, beside the leases because the reference uses it, too.
const LOCK: &str = "lock";

impl Drop for Store {
    fn drop(&mut self) {
        match self.access {
            Access::Inspect => {}
            Access::Change if self.index.is_trusted() => self.index.settle(&self.leases),
            Access::Change => self.index.invalidate(),
        }
    }
}

#[cfg(test)]
mod tests;
