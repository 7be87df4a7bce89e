//! Reads the keys that every verb needs: the location and settings of the leases.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use cni::keys::{absolute, duration};
use cni::{Error, GOING_ON, Network, NetworkName, or_note};

use crate::RawConfig;
use crate::cooldown::Cooldown;
use crate::read::names;

/// Location and settings of the leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// `dataDir`: contains a directory of leases for each network.
    pub data_dir: PathBuf,
    /// `lockTimeout`: the longest wait for a lock that another process holds.
    pub lock_timeout: Duration,
    /// `reuseDelay`: the cooldown of a released address.
    pub reuse_delay: Duration,
    /// `reclaimOnBoot`: what happens to leases of an earlier boot.
    pub earlier_boot: EarlierBoot,
}

/// What happens to leases that were made before the machine's last boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlierBoot {
    /// Release them: no sandbox survives a reboot.
    Release,
    /// Keep them.
    Keep,
    /// Keep them until a verb finds a valid `reclaimOnBoot`, because the key is invalid now.
    Undecided,
}

impl Storage {
    /// Reads the settings for DEL and GC, which must work if `dataDir` is valid. If another setting
    /// is invalid, reports the error and uses the default of this setting. If `reclaimOnBoot` is
    /// invalid, keeps the leases of an earlier boot, which may belong to another node.
    ///
    /// # Errors
    /// Code 7: the `ipam` section is missing, or `dataDir` is not an absolute path.
    pub fn of(network: &Network) -> Result<Self, Error> {
        let read = |keys: &[&str]| Self::new(&network.ipam_keys(keys)?);
        let mut valid = vec!["dataDir"];
        let mut storage = read(&valid)?;
        for key in ["lockTimeout", "reuseDelay", "reclaimOnBoot"] {
            valid.push(key);
            if let Some(read) = or_note(read(&valid), GOING_ON) {
                storage = read;
                continue;
            }
            valid.pop();
            if key == "reclaimOnBoot" {
                storage.earlier_boot = EarlierBoot::Undecided;
            }
        }
        Ok(storage)
    }

    /// Parses the keys `dataDir`, `lockTimeout`, `reuseDelay` and `reclaimOnBoot` of the `ipam`
    /// section. A missing key gets its default.
    ///
    /// # Errors
    /// Code 7: `dataDir` is not an absolute path, or a time is not a duration.
    pub fn new(raw: &RawConfig) -> Result<Self, Error> {
        Ok(Self {
            data_dir: absolute(&raw.data_dir, DEFAULT_DATA_DIR, "ipam.dataDir")?,
            lock_timeout: duration(&raw.lock_timeout, DEFAULT_LOCK_TIMEOUT, "ipam.lockTimeout")?,
            reuse_delay: duration(&raw.reuse_delay, DEFAULT_REUSE_DELAY, "ipam.reuseDelay")?,
            earlier_boot: match raw.reclaim_on_boot {
                None | Some(true) => EarlierBoot::Release,
                Some(false) => EarlierBoot::Keep,
            },
        })
    }

    /// Returns the addresses of `network` that were released less than `reuseDelay` ago. Until the
    /// end of this cooldown, they are leased on request only.
    ///
    /// # Errors
    /// The directory of the times of release cannot be read.
    pub fn resting(&self, network: &NetworkName) -> anyhow::Result<Vec<IpAddr>> {
        if self.reuse_delay.is_zero() {
            return Ok(Vec::new());
        }
        let (cooldown, now) = (self.cooldown(network), SystemTime::now());
        let released = names(&cooldown.directory)?;
        let released = released.iter().filter_map(|it| it.parse().ok());
        Ok(released.filter(|it| cooldown.includes(*it, now)).collect())
    }

    pub(crate) fn cooldown(&self, network: &NetworkName) -> Cooldown {
        Cooldown {
            delay: self.reuse_delay,
            directory: self.index_directory(network).join("released"),
        }
    }

    /// Returns the directory of the leases of `network`: `<dataDir>/<network>`.
    pub fn lease_directory(&self, network: &NetworkName) -> PathBuf {
        self.data_dir.join(network.as_str())
    }

    /// Returns the directory of this plugin's own files for `network`,
    /// `<dataDir>/.host-local/<network>`: the index of leases, the times of release, and incomplete
    /// files.
    pub fn index_directory(&self, network: &NetworkName) -> PathBuf {
        self.data_dir.join(OURS).join(network.as_str())
    }
}

/// Default of `lockTimeout`. It is shorter than the kubelet's `runtimeRequestTimeout` (2 minutes by
/// default), so the plugin can report its error before the runtime kills it.
const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Default of `reuseDelay`: the round robin alone decides when an address is reused, as in the Go
/// plugin `host-local`.
const DEFAULT_REUSE_DELAY: Duration = Duration::ZERO;

/// Default of `dataDir`.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// Directory of the indexes in `dataDir`. No network has this name, because network names never
/// start with a dot.
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
