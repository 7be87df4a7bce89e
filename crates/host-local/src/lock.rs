//! The lock on a network's leases. The reference takes the same lock.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cni::Error;

use crate::scratch::open;

/// A held lock: other processes wait until this value is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock (flock(2)) up to `timeout`. Creates the lock file if necessary.
    ///
    /// # Errors
    /// - Code 11: another process still holds the lock.
    /// - Code 100: the file cannot be created.
    pub fn take(path: &Path, timeout: Duration) -> anyhow::Result<Self> {
        let action = || format!("lock {}", path.display());
        let deadline = Instant::now() + timeout;
        loop {
            let file = open(path).with_context(action)?;
            let taken = take_until(file, deadline).with_context(action)?;
            let kept = || {
                let timeout = humantime::format_duration(timeout);
                Error::TryAgain(format!(
                    "another process has had the lock for more than {timeout}"
                ))
            };
            let lock = taken.ok_or_else(kept).with_context(action)?;
            // If the file was removed while this process waited, other processes create and lock a
            // new file. So the loop then locks the new file instead.
            if is_still_at(&lock, path) {
                return Ok(Self { _file: lock });
            }
        }
    }
}

fn is_still_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (held, found) = (file.metadata(), fs::metadata(path));
    held.map(identity).ok() == found.map(identity).ok()
}

/// Locks `file` at once, or waits for the lock on a thread. Returns `None` if `deadline` passes
/// before the thread has the lock.
///
/// A thread that gets the lock after the deadline releases it at once. The thread does not outlive
/// the process.
fn take_until(file: File, deadline: Instant) -> io::Result<Option<File>> {
    match file.try_lock() {
        Ok(()) => return Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let (turn, ours) = mpsc::channel();
    thread::spawn(move || drop(turn.send(file.lock().map(|()| file))));
    let left = deadline.saturating_duration_since(Instant::now());
    match ours.recv_timeout(left) {
        Ok(lock) => lock.map(Some),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_a_held_lock_ends_after_the_time_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let kept = Lock::take(&path, Duration::ZERO).unwrap();
        let error = Lock::take(&path, Duration::from_millis(50)).unwrap_err();
        let code = error.downcast_ref::<Error>().map(Error::code);
        assert_eq!(code, Some(11), "{error:#}");
        let waiting = thread::spawn(move || Lock::take(&path, Duration::from_secs(20)).map(drop));
        drop(kept);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn lock_on_a_removed_file_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let (old, patience) = (
            Lock::take(&path, Duration::ZERO).unwrap(),
            Duration::from_secs(20),
        );
        let waiting = {
            let path = path.clone();
            thread::spawn(move || Lock::take(&path, patience).unwrap())
        };
        fs::remove_file(&path).unwrap();
        drop(old);
        let taken = waiting.join().unwrap();
        // The test does not call `Lock::take` here: its waiting thread would take the lock for a
        // moment after `drop(taken)`.
        let kept = open(&path).unwrap().try_lock();
        assert!(matches!(kept, Err(TryLockError::WouldBlock)), "{kept:?}");
        drop(taken);
        Lock::take(&path, Duration::ZERO).unwrap();
    }
}
