//! The lock on a network's leases (flock(2)). The Go plugin `host-local` locks the same file.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use cni::Error;
use cni::files::{Hold, lock};

use crate::scratch::open;

/// Waits up to `timeout` for the lock on the file at `path`, which is created if it is missing.
/// Returns the locked file. Other processes wait for the lock until the caller drops this file.
///
/// # Errors
/// - Code 11: another process still holds the lock.
/// - Code 100: the file cannot be created.
pub(crate) fn take(path: &Path, timeout: Duration) -> anyhow::Result<File> {
    let action = || format!("lock {}", path.display());
    let taken = lock(path, open, Hold::Exclusive, timeout).with_context(action)?;
    let kept = || {
        let timeout = humantime::format_duration(timeout);
        Error::TryAgain(format!(
            "another process has had the lock for more than {timeout}"
        ))
    };
    taken.ok_or_else(kept).with_context(action)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, TryLockError};
    use std::thread;

    use super::*;

    #[test]
    fn wait_for_a_held_lock_ends_after_the_time_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let kept = take(&path, Duration::ZERO).unwrap();
        let error = take(&path, Duration::from_millis(50)).unwrap_err();
        let code = error.downcast_ref::<Error>().map(Error::code);
        assert_eq!(code, Some(11), "{error:#}");
        let waiting = thread::spawn(move || take(&path, Duration::from_secs(20)).map(drop));
        drop(kept);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn longest_time_out_is_no_overflow() {
        let directory = tempfile::tempdir().unwrap();
        take(&directory.path().join("lock"), Duration::MAX).unwrap();
    }

    #[test]
    fn lock_on_a_removed_file_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let (old, patience) = (
            take(&path, Duration::ZERO).unwrap(),
            Duration::from_secs(20),
        );
        let waiting = {
            let path = path.clone();
            thread::spawn(move || take(&path, patience).unwrap())
        };
        fs::remove_file(&path).unwrap();
        drop(old);
        let taken = waiting.join().unwrap();
        // `take` would not do here: it leaves a thread that waits for the lock. That thread
        // would hold the lock for a moment after `drop(taken)`, so the last `take` could fail.
        let kept = open(&path).unwrap().try_lock();
        assert!(matches!(kept, Err(TryLockError::WouldBlock)), "{kept:?}");
        drop(taken);
        take(&path, Duration::ZERO).unwrap();
    }
}
