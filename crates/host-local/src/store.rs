//! The leases of one network: lookup, creation and release under a lock.
//!
//! The lease files are authoritative, not the index. If the index is trusted, it names the lease
//! files to read, and the store reads each of them before it uses the lease. If a file contradicts
//! the index, or if the index is not trusted, the store reads all lease files.

use std::collections::HashSet;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cni::{Attachment, GOING_ON, NetworkName, or_note};

use crate::files::Files;
use crate::free::{Free, near};
use crate::index::Record;
use crate::range::RangeSet;
use crate::rebuild::rebuild;
use crate::scratch::make_directory;
use crate::stale_lease_check::StaleLeaseCheck;
use crate::{Boot, EarlierBoot, Holder, Lease, Origin, Storage, Wanted, lock};

/// The leases of one network, locked until this value is dropped.
#[derive(Debug)]
pub struct Store {
    files: Files,
    /// The request of an ADD, for the records of its leases.
    origin: Option<Origin>,
    /// The locked file. Rust closes it, and so releases the lock, after `Store::drop` has written
    /// the state of the index.
    _lock: File,
}

impl Store {
    /// Locks the leases of `network` and creates missing directories. Rebuilds the index of leases
    /// if it may disagree with the lease files. The rebuild also releases leases of an earlier
    /// boot, unless `storage` keeps them. `origin` is the request of the ADD that calls this
    /// function.
    ///
    /// # Errors
    /// The directories cannot be created, or another process holds the lock for too long.
    pub fn open(storage: &Storage, network: &NetworkName, origin: Origin) -> anyhow::Result<Self> {
        make_directory(&storage.lease_directory(network))?;
        make_directory(&storage.index_directory(network))?;
        let mut store = Self::lock(storage, network)?;
        store.origin = Some(origin);
        Ok(store.with_current_index(storage.earlier_boot))
    }

    /// Locks the leases of `network` and rebuilds the index like [`Self::open`]. Returns `None`,
    /// and creates nothing, if the network has neither a lock file nor leases.
    pub(crate) fn open_existing(
        storage: &Storage,
        network: &NetworkName,
    ) -> anyhow::Result<Option<Self>> {
        let store = Self::inspect(storage, network)?;
        Ok(store.map(|store| store.with_current_index(storage.earlier_boot)))
    }

    /// Locks the leases like [`Self::open_existing`], but does not rebuild an index that is not
    /// trusted.
    pub(crate) fn inspect(
        storage: &Storage,
        network: &NetworkName,
    ) -> anyhow::Result<Option<Self>> {
        // Does not create the lock file of a network without leases: a full disk could prevent it,
        // and a DEL without leases must succeed.
        let has_lock = storage.lease_directory(network).join(LOCK).exists();
        let leases = || Files::open(storage, network).leases.addresses();
        if !has_lock && leases()?.is_empty() {
            return Ok(None);
        }
        Self::lock(storage, network).map(Some)
    }

    /// Marks the index of `network` as not trusted. The next ADD, DEL or GC rebuilds it from the
    /// lease files.
    ///
    /// Normally, the modification time of the directory shows that another program has changed
    /// leases. It does not show a lease that a program adds without the lock while a verb changes
    /// leases. The index has no record of such a lease, so a DEL that uses the index does not find
    /// the lease.
    ///
    /// # Errors
    /// The leases cannot be read, or another process holds the lock for too long.
    pub fn distrust_index(storage: &Storage, network: &NetworkName) -> anyhow::Result<()> {
        if let Some(store) = Self::inspect(storage, network)? {
            store.files.index.distrust();
        }
        Ok(())
    }

    fn lock(storage: &Storage, network: &NetworkName) -> anyhow::Result<Self> {
        let file = storage.lease_directory(network).join(LOCK);
        Ok(Self {
            _lock: lock::take(&file, storage.lock_timeout)?,
            files: Files::open(storage, network),
            origin: None,
        })
    }

    /// Rebuilds the index if it is not trusted. If the rebuild fails, lookups read all lease files.
    fn with_current_index(self, earlier: EarlierBoot) -> Self {
        if !self.files.index.is_trusted() {
            self.files.cooldown.tidy();
            let rebuilt = rebuild(&self.files, earlier, self.own()).context("index of leases");
            or_note(rebuilt, GOING_ON);
        }
        self
    }

    /// Returns the sandbox of the request of an ADD.
    fn own(&self) -> Option<&Path> {
        self.origin.as_ref().map(|it| it.sandbox.path.as_path())
    }

    /// Leases the requested address or, if none is requested, the next free address of the set.
    ///
    /// # Errors
    /// The requested address is held, no address is free (code 11 if some are in their cooldown),
    /// or a file cannot be read or written.
    pub fn lease(&self, wanted: &Wanted<'_>, holder: &Holder) -> anyhow::Result<Lease> {
        let leases = &self.files.leases;
        let lease = match wanted.address {
            Some(address) => self.lease_requested(address, holder)?,
            None => self.lease_next(wanted.set, leases.last_reserved(wanted.number), holder)?,
        };
        // The next ADD continues after this address, even if it was requested, as with the Go
        // plugin. If the address cannot be recorded, the next ADD continues elsewhere, which is no
        // error.
        or_note(
            leases.set_last_reserved(wanted.number, lease.address),
            GOING_ON,
        );
        Ok(lease)
    }

    fn lease_requested(&self, address: IpAddr, holder: &Holder) -> anyhow::Result<Lease> {
        if let Some(lease) = self.reserve(address, holder)? {
            return Ok(lease);
        }
        match self.files.leases.holder(address)? {
            Some(holder) => bail!("requested address {address} is held by {holder}"),
            None => bail!("requested address {address} has a file that names no container"),
        }
    }

    /// Leases the next free address of `set` after `last`. First examines the nearest addresses one
    /// by one ([`near`]). If none of them is free, lists all lease files.
    fn lease_next(
        &self,
        set: &RangeSet,
        last: Option<IpAddr>,
        holder: &Holder,
    ) -> anyhow::Result<Lease> {
        let reserve = |address| self.reserve(address, holder).transpose();
        if let Some(lease) = near(&self.files, set, last).and_then(reserve) {
            return lease;
        }
        let free = Free::all_but(self.files.leases.addresses()?, &self.files.cooldown);
        let lease = free.of(set, last).find_map(reserve);
        lease.unwrap_or_else(|| Err(free.exhaustion(set)))
    }

    /// Leases `address` to `holder`; returns `None` if the address already has a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn reserve(&self, address: IpAddr, holder: &Holder) -> anyhow::Result<Option<Lease>> {
        let lease = Lease {
            address,
            holder: holder.clone(),
        };
        let Files { leases, index, .. } = &self.files;
        if !leases.create(&lease)? {
            return Ok(None);
        }
        index.insert(&lease, leases, self.origin.as_ref());
        Ok(Some(lease))
    }

    /// Returns the leases of `attachment` as [`Self::leases_of`] does, and creates nothing.
    ///
    /// # Errors
    /// As [`Self::leases_of`], or another process holds the lock for too long.
    pub fn existing_leases_of(
        storage: &Storage,
        attachment: &Attachment,
    ) -> anyhow::Result<Vec<Lease>> {
        let store = Self::inspect(storage, &attachment.network)?;
        store.map_or(Ok(Vec::new()), |it| it.leases_of(attachment))
    }

    /// Returns the leases of `attachment`. If there are none, returns the leases of the
    /// attachment's container that name no interface. An old version of the Go plugin made such
    /// leases.
    ///
    /// # Errors
    /// The directory of the leases cannot be read. A lease file that cannot be read is skipped.
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

    /// Returns whether the attachment that holds `leases` is gone ([`StaleLeaseCheck::is_gone`]),
    /// according to the record of each lease.
    ///
    /// # Errors
    /// The boot ID, a record or a lease file cannot be read.
    pub(crate) fn is_gone(
        &self,
        attachment: &Attachment,
        leases: &[Lease],
    ) -> anyhow::Result<bool> {
        let Files {
            leases: files,
            index,
            network,
            ..
        } = &self.files;
        let check = StaleLeaseCheck::new(network, Boot::current()?, self.own());
        let records = index.records_of(&Holder::of(attachment))?;
        for lease in leases {
            let identity = files.identity(lease.address)?;
            let is_it = |it: &&Record| it.address == lease.address && Some(it.identity) == identity;
            let record = records.iter().find(is_it);
            if !record.is_some_and(|it| check.is_gone(attachment, it)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the path of the sandbox for which `attachment` got a lease; `None` if it is unknown.
    pub(crate) fn sandbox_of(&self, attachment: &Attachment) -> Option<PathBuf> {
        let records = self.files.index.records_of(&Holder::of(attachment)).ok()?;
        let mut origins = records.into_iter().filter_map(|it| it.origin);
        origins.next().map(|it| it.sandbox.path)
    }

    /// Returns every lease whose holder is not in `listed`.
    ///
    /// # Errors
    /// The directory of the leases cannot be read. A lease file that cannot be read is skipped.
    pub fn leases_except(&self, listed: &HashSet<Holder>) -> anyhow::Result<Vec<Lease>> {
        let is_stale = |holder: &Holder| !listed.contains(holder);
        let stale = self.files.index.holders().map(|mut holders| {
            holders.retain(is_stale);
            holders
        });
        let indexed = stale.and_then(|stale| self.indexed(&stale));
        indexed.map_or_else(|| self.scan(is_stale), Ok)
    }

    /// Releases `leases` and starts the cooldown of their addresses. A lease whose file no longer
    /// exists counts as released.
    ///
    /// # Errors
    /// Some leases cannot be released: the error names each. All other leases are released.
    pub fn release(&self, leases: &[Lease]) -> anyhow::Result<()> {
        // The cooldown starts before the release. If this process is killed in between, a leased
        // address has a cooldown, which is harmless. In the other order, a free address would have
        // no cooldown and could be leased again too early.
        for lease in leases {
            self.files.cooldown.start(lease.address);
        }
        self.cancel(leases)
    }

    /// Releases `leases` without a cooldown, since no container used their addresses.
    ///
    /// # Errors
    /// Some leases cannot be released: the error names each. All other leases are released.
    pub fn cancel(&self, leases: &[Lease]) -> anyhow::Result<()> {
        if leases.is_empty() {
            return Ok(());
        }
        let outcomes = self.files.leases.remove(leases.iter().map(|it| it.address));
        let removed = leases.iter().zip(&outcomes);
        let removed = removed.filter(|(_, outcome)| outcome.is_ok());
        self.files.index.remove(removed.map(|(lease, _)| lease));
        cni::all(outcomes)
    }

    /// Returns the leases of `holders` according to the index. Returns `None` if the index is not
    /// trusted, if a record or a lease file cannot be read, or if they contradict each other. After
    /// such a failure, the index is no longer trusted.
    fn indexed(&self, holders: &[Holder]) -> Option<Vec<Lease>> {
        if !self.files.index.is_trusted() {
            return None;
        }
        let found = holders.iter().map(|holder| self.recorded(holder));
        let leases: Option<Vec<_>> = found.collect();
        if leases.is_none() {
            self.files.index.distrust();
        }
        Some(leases?.concat())
    }

    /// Returns the leases in the records of `holder`; `None` if a record or a lease file cannot be
    /// read, or if they contradict each other.
    fn recorded(&self, holder: &Holder) -> Option<Vec<Lease>> {
        let records = self.files.index.records_of(holder).ok()?;
        let leases = records.into_iter().map(|Record { address, .. }| {
            let found = self.files.leases.holder(address).ok()?;
            let holder = found.filter(|found| found == holder)?;
            Some(Lease { address, holder })
        });
        leases.collect()
    }

    /// Reads every lease file and returns the leases whose holder `is_wanted` accepts. Skips files
    /// that name no holder. Reports and skips a file that cannot be read, so that this file does
    /// not prevent the lookup and release of the other leases.
    fn scan(&self, is_wanted: impl Fn(&Holder) -> bool) -> anyhow::Result<Vec<Lease>> {
        let mut leases = Vec::new();
        for address in self.files.leases.addresses()? {
            let holder = or_note(self.files.leases.holder(address), "the lease stays").flatten();
            let wanted = holder.filter(&is_wanted);
            leases.extend(wanted.map(|holder| Lease { address, holder }));
        }
        Ok(leases)
    }
}

/// Name of the lock file in the directory of the leases. The Go plugin `host-local` locks the same
/// file.
const LOCK: &str = "lock";

impl Drop for Store {
    fn drop(&mut self) {
        self.files.index.settle(&self.files.leases);
    }
}

#[cfg(test)]
mod tests;
