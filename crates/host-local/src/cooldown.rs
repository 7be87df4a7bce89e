//! Times of release, for the cooldown of addresses.
//!
//! The times are a hint: a lost one only shortens an address's cooldown.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cni::note;

use crate::blocks::{Blocks, locate};

/// Times of release of one network's addresses: milliseconds since 1970, in eight bytes per
/// address.
#[derive(Debug)]
pub(crate) struct Cooldown {
    delay: Duration,
    times: Blocks,
}

impl Cooldown {
    /// Creates a cooldown of `delay`; remembers nothing if it is zero.
    pub fn new(directory: PathBuf, delay: Duration) -> Self {
        Self {
            delay,
            times: Blocks::new(directory),
        }
    }

    /// Starts the cooldown of `address`.
    pub fn start(&self, address: IpAddr) {
        if self.delay.is_zero() {
            return;
        }
        let (first, offset) = locate(address);
        let time = milliseconds(SystemTime::now()).to_le_bytes();
        if let Err(error) = self.times.write(first, offset * WIDTH, &time) {
            note(format_args!("record when {address} was released: {error}"));
        }
    }

    /// Returns whether `address` was released less than the delay before `now`. A release in the
    /// future comes from a wrong clock and does not count.
    pub fn includes(&self, address: IpAddr, now: SystemTime) -> bool {
        if self.delay.is_zero() {
            return false;
        }
        let (first, offset) = locate(address);
        let released = self.times.look(first, |block| {
            let slot = block.get(offset * WIDTH..)?.first_chunk::<WIDTH>()?;
            Some(u64::from_le_bytes(*slot))
        });
        let age = released.and_then(|released| milliseconds(now).checked_sub(released));
        age.is_some_and(|age| u128::from(age) < self.delay.as_millis())
    }

    /// Returns the length of the cooldown.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Removes times that have expired by the longest delay that other callers may use.
    pub fn tidy(&self) {
        let begin = SystemTime::now().checked_sub(self.delay.max(LONGEST_USUAL));
        if let Some(Err(error)) = begin.map(|begin| self.times.remove_older(begin)) {
            note(format_args!("remove old times of release: {error}"));
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
}
