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
pub struct Rest {
    delay: Duration,
    times: Blocks,
}

impl Rest {
    /// Creates a cooldown of `delay`; remembers nothing if it is zero.
    pub fn new(directory: PathBuf, delay: Duration) -> Self {
        Self {
            delay,
            times: Blocks::new(directory),
        }
    }

    /// Starts the cooldown of `address`.
    pub fn begin(&self, address: IpAddr) {
        if self.delay.is_zero() {
            return;
        }
        let (first, offset) = locate(address);
        let time = milliseconds(SystemTime::now()).to_le_bytes();
        if let Err(error) = self.times.write(first, offset * WIDTH, &time) {
            note(format_args!(
                "remember when {address} was released: {error}"
            ));
        }
    }

    /// Returns whether `address` was released less than the delay before `now`. A release in the
    /// future comes from a wrong clock and does not count.
    pub fn holds(&self, address: IpAddr, now: SystemTime) -> bool {
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
    fn address_rests_for_the_delay_and_only_after_its_release() {
        let directory = tempfile::tempdir().unwrap();
        let delay = Duration::from_mins(1);
        let rest = Rest::new(directory.path().join("released"), delay);
        let [released, other] = ["10.1.0.7", "10.1.0.6"].map(|text| text.parse().unwrap());
        let before = SystemTime::now();
        rest.begin(released);
        let after = SystemTime::now();
        assert!(rest.holds(released, after) && !rest.holds(other, after));
        assert!(!rest.holds(released, after + delay));
        assert!(rest.holds(released, before + delay - Duration::from_millis(1)));
        assert!(!rest.holds(released, before - Duration::from_secs(1)));
    }

    #[test]
    fn nothing_is_remembered_where_nothing_rests() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("released");
        let address = "10.1.0.7".parse().unwrap();
        let rest = Rest::new(path.clone(), Duration::ZERO);
        rest.begin(address);
        assert!(!rest.holds(address, SystemTime::now()) && !path.exists());
        let resting = Rest::new(path.clone(), Duration::from_secs(9));
        resting.begin(address);
        resting.tidy();
        assert!(resting.holds(address, SystemTime::now()));
        rest.tidy();
        assert!(resting.holds(address, SystemTime::now()));
    }
}
