//! Leaves what takes long, and nobody waits for, to a process of its own.
//!
//! A link that is deleted is gone for everybody after a millisecond, and so is an element of
//! `nf_tables`; whoever asked the kernel for it is held for another 15 to 30, until all
//! processors have let go of it (`rcu_barrier`). No thread can take that over, since a process
//! ends with its last one. So an executable starts itself once more, with a [`Task`] as its
//! argument, and goes on as soon as it sees that the thing is gone.
//!
//! This crate does not know what tasks there are.

use std::env;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::unistd::close;

/// What a process was started for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    words: String,
    holds_last: bool,
}

impl Task {
    /// What this process was started for by [`Detached::start`]; `None` where somebody else
    /// started it. To be asked before anything else is opened: files that whoever started the
    /// parent forgot to close are closed here.
    pub fn of_this_process() -> Option<Self> {
        let mut arguments = env::args_os().skip(1).map(|it| it.into_string().ok());
        let (mark, words) = (arguments.next()??, arguments.next()??);
        if mark != MARK {
            return None;
        }
        close_inherited();
        let holds_last = arguments.next().flatten().as_deref() == Some(HOLDS_LAST);
        Some(Self { words, holds_last })
    }

    /// Closing a file is all of it, which comes by itself.
    pub fn is_close(&self) -> bool {
        self.words == CLOSE
    }

    /// Its words, as they were given to [`Detached::start`].
    pub fn words(&self) -> &str {
        &self.words
    }

    /// What the process ends with, so that [`Detached::outcome`] tells why it failed. A file that it
    /// holds is kept until it may be closed.
    pub fn end(&self, outcome: Result<(), Errno>) -> ExitCode {
        match outcome {
            Ok(()) => {
                if self.holds_last {
                    linger();
                }
                ExitCode::SUCCESS
            }
            Err(errno) => ExitCode::from(u8::try_from(errno as i32).unwrap_or(u8::MAX)),
        }
    }
}

/// A process of ours that nobody waits for.
#[derive(Debug)]
pub struct Detached {
    child: Child,
}

impl Detached {
    /// Starts this executable for the task of these words. It holds no file of the caller's,
    /// but for `last`, which closes as it ends.
    ///
    /// # Errors
    /// No process can be started.
    pub fn start(words: &str, last: Option<OwnedFd>) -> io::Result<Self> {
        let child = Command::new("/proc/self/exe")
            .args([MARK, words])
            .args(last.as_ref().map(|_| HOLDS_LAST))
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(last.map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child })
    }

    /// Lets a process of its own close `file`.
    ///
    /// # Errors
    /// No process can be started; `file` is closed then.
    pub fn close(file: OwnedFd) -> io::Result<Self> {
        Self::start(CLOSE, Some(file))
    }

    /// What it came to, if it has ended.
    ///
    /// # Errors
    /// It was killed.
    pub fn outcome(&mut self) -> io::Result<Option<Result<(), Errno>>> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(None);
        };
        match status.code() {
            Some(0) => Ok(Some(Ok(()))),
            Some(code) => Ok(Some(Err(Errno::from_raw(code)))),
            None => Err(io::Error::other(status.to_string())),
        }
    }
}

/// Waits until the file may be closed.
///
/// Whoever closes an `nf_tables` socket, while anything that anybody deleted is not yet freed, waits
/// for that with the lock on all rules, and with him whoever wants to change any, or to delete a link
/// (`nft_rcv_nl_event` and `nf_tables_netdev_event` in `net/netfilter`). So all who have one to close do
/// it at the same moment, when one of them waits and the others find it done.
fn linger() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let end = Instant::now() + until_close(now.unwrap_or_default());
    while let Some(rest) = end.checked_duration_since(Instant::now()) {
        thread::park_timeout(rest);
    }
}

/// How long it is to the next moment for closing; `now` is the time of day.
fn until_close(now: Duration) -> Duration {
    let past = (now + GRACE).subsec_millis() % BETWEEN_CLOSES;
    GRACE + Duration::from_millis((BETWEEN_CLOSES - past).into())
}

/// All but the three standard ones, which are the parent's own.
fn close_inherited() {
    let Ok(open) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let numbers: Vec<i32> = open
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The directory itself was among them and is closed already.
        close(number).ok();
    }
}

const CLOSE: &str = "close";

/// How a process is told that its standard input is a file to be closed in the end.
const HOLDS_LAST: &str = "holds-last";

/// What is deleted is freed by then, unless others delete as well: a grace period of the kernel takes 10 to 30 ms.
const GRACE: Duration = Duration::from_millis(50);

/// In milliseconds, a part of a second.
const BETWEEN_CLOSES: u32 = 500;

/// The argument that nobody gives by hand.
const MARK: &str = "--left-over";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_close_at_the_same_moment_and_none_before_its_own_work_is_done() {
        for now in (0..2_000).map(Duration::from_millis) {
            let wait = until_close(now);
            assert_eq!((now + wait).subsec_millis() % BETWEEN_CLOSES, 0, "{now:?}");
            assert!(wait >= GRACE && wait <= GRACE + Duration::from_millis(BETWEEN_CLOSES.into()));
        }
    }
}
