//! The cooldown of released addresses: for the time `reuseDelay`, they are leased on request only.
//!
//! The times of release are only a hint: if a file is lost, the cooldown of its address ends early.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use cni::files::if_present;
use cni::note_failure;

use crate::scratch::{make_directory, open};

/// Times at which addresses of one network were released. Each time is the modification time of an
/// empty file that is named after the address.
#[derive(Debug)]
pub(crate) struct Cooldown {
    /// Length of the cooldown. If it is zero, no time is recorded.
    pub delay: Duration,
    /// Directory of the files; it may not exist yet.
    pub directory: PathBuf,
}

impl Cooldown {
    /// Starts the cooldown of `address`: sets the modification time of the address's file to the
    /// current time. Once a day, also tidies up, because IPv6 addresses hardly ever return. Only writes
    /// a failure to standard error.
    pub fn start(&self, address: IpAddr) {
        if self.delay.is_zero() {
            return;
        }
        let touched = touch(&self.file(address));
        note_failure(touched.with_context(|| format!("record when {address} was released")));
        let mark = self.directory.join(TIDIED);
        let modified = fs::symlink_metadata(&mark).and_then(|it| it.modified());
        let age = modified.ok().and_then(|it| it.elapsed().ok());
        if age.is_none_or(|it| it > LONGEST_USUAL) {
            self.tidy();
            note_failure(touch(&mark));
        }
    }

    /// Returns whether `address` was released less than `delay` before `now`. A time of release in
    /// the future comes from a wrong clock and does not count.
    pub fn includes(&self, address: IpAddr, now: SystemTime) -> bool {
        let released = || {
            let file = fs::symlink_metadata(self.file(address)).ok()?;
            now.duration_since(file.modified().ok()?).ok()
        };
        !self.delay.is_zero() && released().is_some_and(|age| age < self.delay)
    }

    /// Removes the files whose times of release are older than both `delay` and 24 hours.
    pub fn tidy(&self) {
        if let Some(begin) = SystemTime::now().checked_sub(self.delay.max(LONGEST_USUAL)) {
            note_failure(
                self.remove_older(begin)
                    .context("remove old times of release"),
            );
        }
    }

    fn remove_older(&self, time: SystemTime) -> io::Result<()> {
        let files = if_present(fs::read_dir(&self.directory))?;
        for file in files.into_iter().flatten() {
            let file = file?;
            if file.metadata()?.modified()? < time {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }

    fn file(&self, address: IpAddr) -> PathBuf {
        self.directory.join(address.to_string())
    }
}

/// Sets the modification time of a file, which may not exist, to the current time.
fn touch(path: &Path) -> anyhow::Result<()> {
    let file = match open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), make_directory)?;
            open(path)
        }
        opened => opened,
    };
    let dated = file.and_then(|file| file.set_modified(SystemTime::now()));
    dated.with_context(|| format!("write {}", path.display()))
}

/// File whose modification time is that of the last [`Cooldown::tidy`] by [`Cooldown::start`].
const TIDIED: &str = "tidied";

/// Minimum age at which [`Cooldown::tidy`] removes a file. The age is at least a day, because a
/// verb with an old configuration may call `tidy` with a shorter `delay` than the current one.
const LONGEST_USUAL: Duration = Duration::from_hours(24);

#[cfg(test)]
mod tests {
    use super::*;

    fn cooldown(directory: PathBuf, delay: Duration) -> Cooldown {
        Cooldown { delay, directory }
    }

    #[test]
    fn address_has_a_cooldown_after_its_release_only() {
        let directory = tempfile::tempdir().unwrap();
        let delay = Duration::from_mins(1);
        let times = cooldown(directory.path().join("released"), delay);
        let [released, other] = ["10.1.0.7", "10.1.0.6"].map(|text| text.parse().unwrap());
        let before = SystemTime::now();
        times.start(released);
        let after = SystemTime::now();
        assert!(times.includes(released, after) && !times.includes(other, after));
        assert!(!times.includes(released, after + delay));
        assert!(times.includes(released, before + delay - Duration::from_millis(1)));
        assert!(!times.includes(released, before - Duration::from_secs(1)));
    }

    #[test]
    fn old_times_are_removed_once_a_day() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("released");
        let times = cooldown(path.clone(), Duration::from_mins(1));
        let [old, newer] = ["fd00::7", "fd00::8"].map(|text| text.parse().unwrap());
        let age = |file: &Path, hours| {
            let time = SystemTime::now() - Duration::from_hours(hours);
            open(file).unwrap().set_modified(time).unwrap();
        };
        times.start(old);
        age(&times.file(old), 25);
        times.start(newer);
        assert!(times.file(old).exists(), "tidied today");
        age(&path.join(TIDIED), 25);
        times.start(newer);
        assert!(!times.file(old).exists() && times.file(newer).exists());
    }

    #[test]
    fn nothing_is_remembered_without_a_delay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("released");
        let address = "10.1.0.7".parse().unwrap();
        let times = cooldown(path.clone(), Duration::ZERO);
        times.start(address);
        assert!(!times.includes(address, SystemTime::now()) && !path.exists());
        let set = cooldown(path.clone(), Duration::from_secs(9));
        set.start(address);
        set.tidy();
        assert!(set.includes(address, SystemTime::now()));
        times.tidy();
        assert!(set.includes(address, SystemTime::now()));
    }
}
