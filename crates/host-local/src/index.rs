//! The index of leases: addresses by holder.
//!
//! The directory `<dataDir>/.host-local/<network>` contains the directory `records`, with a record
//! file for each holder, and the file `state`. The plugin writes `state` when the records agree
//! with the lease files. `state` contains the identifiers of the boot, and the modification times of
//! two directories: the directory of the leases, and `records`.
//!
//! The index is only a hint. `state` no longer matches after a reboot, after an interrupted change,
//! or after another program added or removed a lease file. Then the plugin does not trust the index
//! until it has rebuilt it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use cni::files::{self, if_present};
use cni::{FirstFormat, note, note_failure, or_note};
use serde::{Deserialize, Serialize};

use crate::directory::{Directory, Identity, Stamp};
use crate::scratch::{Scratch, make_directory, remove_file};
use crate::{Boot, Holder, Lease, Origin, read};

/// The index of one network's leases. It shows which addresses a holder has, so that not all lease
/// files must be read.
#[derive(Debug)]
pub struct Index {
    records: PathBuf,
    state: PathBuf,
    scratch: Scratch,
    trust: Cell<Trust>,
}

/// The record of a lease in the index. It shows whether the lease is from an earlier boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Leased address.
    pub address: IpAddr,
    /// Inode and ctime of the lease's file, to recognise a later file for the same address.
    pub identity: Identity,
    /// The boot in which the lease was made. If a lease had no record, the boot in which the index
    /// was rebuilt.
    #[serde(flatten)]
    pub boot: Boot,
    /// The request for which the address was leased; `None` if another program leased it.
    #[serde(default, flatten)]
    pub origin: Option<Origin>,
}

/// All records of the index, by the holder of the leases.
pub(crate) type Records = BTreeMap<Holder, Vec<Record>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// The index agrees with the lease files, and the file `state` is up to date.
    Settled,
    /// The index agrees with the lease files, but the file `state` is out of date.
    Unsettled,
    /// The index may disagree with the lease files.
    Distrusted,
}

/// Content of the file `state`. `leases` and `records` are the modification times that the
/// directory of the leases and the directory `records` had when the records last agreed with the
/// lease files. An index of another format is not trusted, so it is rebuilt from the leases.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    #[serde(default)]
    format: FirstFormat,
    #[serde(flatten)]
    boot: Boot,
    leases: Stamp,
    records: Stamp,
}

impl Index {
    /// Opens the index in `directory`.
    ///
    /// The index is trusted if the file `state` has the identifiers of this boot and the present
    /// modification times of `leases` and `records`: then no other program has added or removed a
    /// lease since `state` was written. If the index is trusted, this function also starts to watch
    /// `leases` for changes by other programs.
    pub fn open(directory: PathBuf, leases: &Directory) -> Self {
        let index = Self {
            records: directory.join("records"),
            state: directory.join("state"),
            trust: Cell::new(Trust::Distrusted),
            scratch: Scratch(directory),
        };
        if index.is_current(leases).unwrap_or_default() {
            index.trust.set(Trust::Settled);
        }
        index
    }

    /// Returns whether the index agrees with the lease files, as far as this process knows. If not,
    /// a search for leases must read all lease files.
    pub fn is_trusted(&self) -> bool {
        self.trust.get() != Trust::Distrusted
    }

    /// Marks the index as not trusted until it is rebuilt, for this process and later ones.
    pub fn distrust(&self) {
        self.trust.set(Trust::Distrusted);
        note_failure(files::remove(&self.state));
    }

    /// Returns the records of `holder`; an empty list if it has none.
    pub fn records_of(&self, holder: &Holder) -> anyhow::Result<Vec<Record>> {
        let path = self.record_file(holder);
        let action = || format!("read {}", path.display());
        match if_present(read::own(&path)).with_context(action)? {
            Some(text) => serde_json::from_slice(&text).with_context(action),
            None => Ok(Vec::new()),
        }
    }

    /// Returns all holders with a record; `None` if the records cannot be listed or the name of a
    /// record file is invalid.
    pub fn holders(&self) -> Option<Vec<Holder>> {
        let names = read::names(&self.records).ok()?;
        names.iter().map(|name| parse_name(name)).collect()
    }

    /// Adds the record of a new lease, whose file is in `leases`. Does nothing if the index is not
    /// trusted. A failure marks the index as not trusted.
    pub fn insert(&self, lease: &Lease, leases: &Directory, origin: Option<&Origin>) {
        let Lease { address, holder } = lease;
        self.change(|| {
            let identity = leases.identity(*address)?;
            let mut records = self.records_of(holder)?;
            records.push(Record {
                address: *address,
                identity: identity.context("the lease is deleted already")?,
                boot: Boot::current()?,
                origin: origin.cloned(),
            });
            self.write_records(holder, &records)
        });
    }

    /// Removes the records of released leases. Some leases may have no record. Does nothing if the
    /// index is not trusted. A failure marks the index as not trusted.
    pub fn remove<'a>(&self, leases: impl Iterator<Item = &'a Lease>) {
        let mut released: BTreeMap<&Holder, Vec<IpAddr>> = BTreeMap::new();
        for Lease { address, holder } in leases {
            released.entry(holder).or_default().push(*address);
        }
        self.change(|| {
            released.iter().try_for_each(|(holder, addresses)| {
                let mut records = self.records_of(holder)?;
                records.retain(|record| !addresses.contains(&record.address));
                self.write_records(holder, &records)
            })
        });
    }

    /// Returns all records, except those that cannot be read.
    pub fn read_all(&self) -> Records {
        let names = read::names(&self.records).unwrap_or_default();
        let holders = names.iter().filter_map(|name| parse_name(name));
        let read = |holder| Some((self.records_of(&holder).ok()?, holder));
        let records = holders.filter_map(read);
        records.map(|(records, holder)| (holder, records)).collect()
    }

    /// Replaces all records by `new`, and trusts the index if every record could be written. Writes
    /// only records that differ from `old`, the existing records ([`Self::read_all`]).
    pub fn replace(&self, old: &Records, new: &Records) -> anyhow::Result<()> {
        let directory = &self.records;
        make_directory(directory)?;
        for name in read::names(directory)? {
            if parse_name(&name).is_none_or(|holder| !new.contains_key(&holder)) {
                let path = directory.join(name);
                let removed = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
                note_failure(removed.with_context(|| format!("remove record {}", path.display())));
            }
        }
        let changed = new
            .iter()
            .filter(|(holder, records)| old.get(holder) != Some(records));
        // Records are independent: a failure does not prevent writing the others.
        cni::all(changed.map(|(holder, records)| self.write_records(holder, records)))?;
        self.trust.set(Trust::Unsettled);
        Ok(())
    }

    /// Writes the file `state` if the index agrees with `leases` and `state` is out of date.
    pub fn settle(&self, leases: &Directory) {
        // If another program changed the leases, the old `state` stays. It does not match the
        // leases, so the next process does not trust the index.
        if self.trust.get() == Trust::Unsettled
            && let Some(date) = leases.undisturbed_since()
        {
            match self.write_state(date) {
                Ok(()) => self.trust.set(Trust::Settled),
                Err(error) => note!("record the state of the leases: {error:#}"),
            }
        }
    }

    fn write_state(&self, leases: Stamp) -> anyhow::Result<()> {
        let text = serde_json::to_string(&self.state(leases)?)?;
        Ok(self.scratch.replace(&self.state, &text)?)
    }

    fn change(&self, change: impl FnOnce() -> anyhow::Result<()>) {
        if !self.is_trusted() {
            return;
        }
        self.trust.set(Trust::Unsettled);
        let changed = change().context("index of leases");
        if or_note(changed, "it will be rebuilt").is_none() {
            self.distrust();
        }
    }

    fn is_current(&self, leases: &Directory) -> anyhow::Result<bool> {
        let state: State = serde_json::from_slice(&read::own(&self.state)?)?;
        let is_same = state == self.state(state.leases)?;
        Ok(is_same && leases.resume_watch(state.leases))
    }

    fn state(&self, leases: Stamp) -> anyhow::Result<State> {
        Ok(State {
            format: FirstFormat,
            boot: Boot::current()?,
            leases,
            records: Stamp::of(&fs::metadata(&self.records)?),
        })
    }

    fn write_records(&self, holder: &Holder, records: &[Record]) -> anyhow::Result<()> {
        let path = self.record_file(holder);
        let written = if records.is_empty() {
            remove_file(&path)
        } else {
            self.scratch
                .replace(&path, &serde_json::to_string(records)?)
        };
        written.with_context(|| format!("write {}", path.display()))
    }

    fn record_file(&self, holder: &Holder) -> PathBuf {
        self.records.join(holder.joined(SEPARATOR))
    }
}

/// Returns the holder whose record file is called `name`; `None` if `name` is not a valid name of a
/// record file.
fn parse_name(name: &str) -> Option<Holder> {
    let mut names = name.splitn(2, SEPARATOR);
    Holder::of_names(names.next()?, names.next())
}

/// Separator of the parts in a record's file name. Container IDs and interface names contain no
/// colon.
const SEPARATOR: &str = ":";

#[cfg(test)]
mod tests;
