//! Location and settings of the leases: the keys that every verb needs.

use std::path::PathBuf;
use std::time::Duration;

use cni::{Error, Network, NetworkName, note};

use crate::raw::RawConfig;

/// Location and settings of the leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// Directory of all networks' leases.
    pub data_dir: PathBuf,
    /// Longest wait for another process's lock.
    pub lock_timeout: Duration,
    /// Cooldown of a released address.
    pub reuse_delay: Duration,
    /// Treatment of leases of an earlier boot.
    pub earlier_boot: EarlierBoot,
}

/// Treatment of leases of an earlier boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlierBoot {
    /// Release them: no sandbox survives a reboot.
    Release,
    /// Keep them.
    Keep,
}

impl Storage {
    /// Reads the settings for DEL and GC, which must not fail because of a key that only ADD needs.
    /// An invalid one causes a message.
    ///
    /// # Errors
    /// Code 7: the `ipam` section is missing, or `dataDir` is not an absolute path.
    pub fn of(network: &Network) -> Result<Self, Error> {
        let read = |keys: &[&str]| Self::new(&network.ipam_keys(keys)?);
        read(&["dataDir", "lockTimeout", "reuseDelay", "reclaimOnBoot"]).or_else(|error| {
            let storage = read(&["dataDir"])?;
            note(format_args!("{error}; going on without it"));
            Ok(storage)
        })
    }

    /// # Errors
    /// Code 7: `dataDir` is not an absolute path, or a time is not a duration.
    pub(crate) fn new(raw: &RawConfig) -> Result<Self, Error> {
        let data_dir = PathBuf::from(or(&raw.data_dir, DEFAULT_DATA_DIR));
        if !data_dir.is_absolute() {
            let reason = format!("\"{}\" is not an absolute path", data_dir.display());
            return Err(Error::invalid("ipam.dataDir", reason));
        }
        Ok(Self {
            data_dir,
            lock_timeout: duration("lockTimeout", or(&raw.lock_timeout, DEFAULT_LOCK_TIMEOUT))?,
            reuse_delay: duration("reuseDelay", or(&raw.reuse_delay, DEFAULT_REUSE_DELAY))?,
            earlier_boot: match raw.reclaim_on_boot {
                None | Some(true) => EarlierBoot::Release,
                Some(false) => EarlierBoot::Keep,
            },
        })
    }

    /// Returns the directory of the leases of `network`.
    pub fn lease_directory(&self, network: &NetworkName) -> PathBuf {
        self.data_dir.join(network.as_str())
    }

    /// Returns the directory of the index of `network`.
    pub fn index_directory(&self, network: &NetworkName) -> PathBuf {
        self.data_dir.join(OURS).join(network.as_str())
    }
}

/// Returns `text`, or `default` if it is empty.
fn or<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

fn duration(key: &str, text: &str) -> Result<Duration, Error> {
    let invalid = |error| Error::invalid(format!("ipam.{key}"), format!("{text:?}: {error}"));
    humantime::parse_duration(text).map_err(invalid)
}

/// Shorter than any runtime's time-out.
const DEFAULT_LOCK_TIMEOUT: &str = "30s";

/// The reference's behaviour: the round robin alone decides when an address is reused.
const DEFAULT_REUSE_DELAY: &str = "0s";

/// Directory of the leases without `dataDir`.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// Directory of the indexes; network names never start with a dot.
const OURS: &str = ".host-local";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn storage(keys: &[(&str, &str)]) -> Result<Storage, Error> {
        let keys = keys
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).into()));
        let keys = serde_json::Value::Object(keys.collect());
        Storage::new(&serde_json::from_value(keys).unwrap())
    }

    #[test]
    fn defaults_are_those_of_the_reference_and_half_a_minute_for_the_lock() {
        let default = storage(&[]).unwrap();
        assert_eq!(default.data_dir, Path::new(DEFAULT_DATA_DIR));
        assert_eq!(default.lock_timeout.as_secs(), 30);
        assert_eq!(default.reuse_delay, Duration::ZERO);
        assert_eq!(default.earlier_boot, EarlierBoot::Release);
        let keys = [("lockTimeout", "250ms"), ("reuseDelay", "5m")];
        let chosen = storage(&keys).unwrap();
        assert_eq!(chosen.lock_timeout.as_millis(), 250);
        assert_eq!(chosen.reuse_delay.as_secs(), 300);
    }

    #[test]
    fn invalid_path_or_duration_is_refused_with_its_key() {
        for (key, value) in [
            ("dataDir", "networks"),
            ("lockTimeout", "30"),
            ("lockTimeout", "-1s"),
            ("reuseDelay", "soon"),
        ] {
            let error = storage(&[(key, value)]).unwrap_err();
            assert_eq!(error.code(), 7);
            let text = error.to_string();
            assert!(text.contains(key) && text.contains(value), "{text}");
        }
    }
}
