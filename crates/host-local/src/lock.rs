//! The lock on a network's leases, which the reference takes, too.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use cni::Error;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Keeps everybody else out until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Takes the lock by flock(2), waiting no longer than `timeout`.
    ///
    /// # Errors
    /// Code 11: somebody else keeps it; 100: the file cannot be made.
    pub fn take(path: &Path, timeout: Duration) -> anyhow::Result<Self> {
        let action = || format!("lock {}", path.display());
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let file = options.open(path).with_context(action)?;
        let file = take_within(file, timeout).with_context(action)?;
        Ok(Self { _file: file })
    }
}

/// Takes the lock at once or, on a thread that keeps its turn, within `timeout`.
///
/// A thread that is too late ends with the process.
fn take_within(file: File, timeout: Duration) -> anyhow::Result<Flock<File>> {
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => return Ok(lock),
        Err((file, Errno::EWOULDBLOCK)) => file,
        Err((_, errno)) => return Err(errno.into()),
    };
    let (turn, ours) = mpsc::channel();
    thread::spawn(move || drop(turn.send(Flock::lock(file, FlockArg::LockExclusive))));
    match ours.recv_timeout(timeout) {
        Ok(lock) => lock.map_err(|(_, errno)| errno.into()),
        Err(_) => Err(Error::TryAgain {
            reason: format!(
                "somebody else keeps the lock for more than {}",
                humantime::format_duration(timeout)
            ),
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_that_somebody_keeps_is_waited_for_no_longer_than_asked() {
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
}
