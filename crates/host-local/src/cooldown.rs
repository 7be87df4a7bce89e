//! Times of release, for the cooldown of addresses.
//!
//! The times are a hint: a lost one only shortens an address's cooldown.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cni::note;

use crate::read;
use crate::scratch::{make_directory, open};

/// Times of release of one network's addresses: milliseconds since 1970, in eight bytes per
/// address. Each file has a block of 65,536 addresses and is named after the first.
#[derive(Debug)]
pub(crate) struct Cooldown {
    /// Length; nothing is remembered if it is zero.
    pub delay: Duration,
    directory: PathBuf,
    read: RefCell<HashMap<IpAddr, Vec<u8>>>,
}

impl Cooldown {
    /// Creates a cooldown of `delay` with files in `directory`, which may not exist yet.
    pub fn new(directory: PathBuf, delay: Duration) -> Self {
        Self {
            delay,
            directory,
            read: RefCell::default(),
        }
    }

    /// Starts the cooldown of `address`.
    pub fn start(&self, address: IpAddr) {
        if self.delay.is_zero() {
            return;
        }
        if let Err(error) = self.write(address, SystemTime::now()) {
            note(format_args!("record when {address} was released: {error}"));
        }
    }

    /// Returns whether `address` was released less than the delay before `now`. A release in the
    /// future comes from a wrong clock and does not count.
    pub fn includes(&self, address: IpAddr, now: SystemTime) -> bool {
        if self.delay.is_zero() {
            return false;
        }
        let age = self
            .released(address)
            .and_then(|released| milliseconds(now).checked_sub(released));
        age.is_some_and(|age| u128::from(age) < self.delay.as_millis())
    }

    /// Removes times that have expired by the longest delay that other callers may use.
    pub fn tidy(&self) {
        let begin = SystemTime::now().checked_sub(self.delay.max(LONGEST_USUAL));
        if let Some(Err(error)) = begin.map(|begin| self.remove_older(begin)) {
            note(format_args!("remove old times of release: {error}"));
        }
    }

    fn released(&self, address: IpAddr) -> Option<u64> {
        let (first, offset) = locate(address);
        let mut read = self.read.borrow_mut();
        let block = read
            .entry(first)
            .or_insert_with(|| read::own(&self.file(first)).unwrap_or_default());
        let slot = block.get(offset * WIDTH..)?.first_chunk::<WIDTH>()?;
        Some(u64::from_le_bytes(*slot))
    }

    fn write(&self, address: IpAddr, time: SystemTime) -> io::Result<()> {
        let (first, offset) = locate(address);
        self.read.borrow_mut().remove(&first);
        let path = self.file(first);
        let file = open(&path).or_else(|_| {
            make_directory(&self.directory)?;
            open(&path)
        })?;
        file.write_all_at(&milliseconds(time).to_le_bytes(), (offset * WIDTH) as u64)
    }

    /// Removes the blocks whose last write was before `time`.
    fn remove_older(&self, time: SystemTime) -> io::Result<()> {
        let files = read::existing(fs::read_dir(&self.directory))?;
        for file in files.into_iter().flatten() {
            let file = file?;
            if file.metadata()?.modified()? < time {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }

    fn file(&self, first: IpAddr) -> PathBuf {
        self.directory.join(first.to_string())
    }
}

/// Returns the first address of the block with `address`, and the offset of `address` in it.
fn locate(address: IpAddr) -> (IpAddr, usize) {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            let offset = u16::from_be_bytes([c, d]);
            ([a, b, 0, 0].into(), offset.into())
        }
        IpAddr::V6(address) => {
            let mut segments = address.segments();
            let [.., last] = &mut segments;
            let offset = std::mem::take(last);
            (segments.into(), offset.into())
        }
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Minimum age for removal: a DEL may have an older configuration with a shorter delay.
const LONGEST_USUAL: Duration = Duration::from_hours(24);

/// Bytes per time.
const WIDTH: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_a_cooldown_after_its_release_only() {
        let directory = tempfile::tempdir().unwrap();
        let delay = Duration::from_mins(1);
        let cooldown = Cooldown::new(directory.path().join("released"), delay);
        let [released, other] = ["10.1.0.7", "10.1.0.6"].map(|text| text.parse().unwrap());
        let before = SystemTime::now();
        cooldown.start(released);
        let after = SystemTime::now();
        assert!(cooldown.includes(released, after) && !cooldown.includes(other, after));
        assert!(!cooldown.includes(released, after + delay));
        assert!(cooldown.includes(released, before + delay - Duration::from_millis(1)));
        assert!(!cooldown.includes(released, before - Duration::from_secs(1)));
    }

    #[test]
    fn nothing_is_remembered_without_a_delay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("released");
        let address = "10.1.0.7".parse().unwrap();
        let cooldown = Cooldown::new(path.clone(), Duration::ZERO);
        cooldown.start(address);
        assert!(!cooldown.includes(address, SystemTime::now()) && !path.exists());
        let set = Cooldown::new(path.clone(), Duration::from_secs(9));
        set.start(address);
        set.tidy();
        assert!(set.includes(address, SystemTime::now()));
        cooldown.tidy();
        assert!(set.includes(address, SystemTime::now()));
    }

    #[test]
    fn block_holds_the_addresses_that_differ_in_the_last_two_bytes() {
        for (address, first, offset) in [
            ("10.1.2.3", "10.1.0.0", 0x0203),
            ("10.1.255.255", "10.1.0.0", 0xffff),
            ("fd00:1::2:7", "fd00:1::2:0", 7),
        ] {
            let first: IpAddr = first.parse().unwrap();
            assert_eq!(locate(address.parse().unwrap()), (first, offset));
        }
    }
}
