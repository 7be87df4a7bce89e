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
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::close;

/// What a process was started for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task(String);

impl Task {
    /// What this process was started for by [`Detached::start`]; `None` where somebody else
    /// started it. To be asked before anything else is opened: files that whoever started the
    /// parent forgot to close are closed here.
    pub fn of_this_process() -> Option<Self> {
        let mut arguments = env::args().skip(1);
        let (mark, task) = (arguments.next()?, arguments.next()?);
        if mark != MARK {
            return None;
        }
        close_inherited();
        Some(Self(task))
    }

    /// Closing a file is all of it, which comes by itself.
    pub fn is_close(&self) -> bool {
        self.0 == CLOSE
    }

    /// Waits until what was deleted by the file that is to be closed is freed for certain. Whoever
    /// closes an `nf_tables` socket earlier waits for that with the lock on all rules, and with
    /// him whoever wants to change any (`nft_rcv_nl_event` in `net/netfilter/nf_tables_api.c`).
    pub fn linger(&self) {
        let end = Instant::now() + LINGER;
        while let Some(rest) = end.checked_duration_since(Instant::now()) {
            thread::park_timeout(rest);
        }
    }

    /// Its words, as they were given to [`Detached::start`].
    pub fn words(&self) -> &str {
        &self.0
    }

    /// What the process ends with, so that [`Detached::failure`] tells why.
    pub fn end(&self, outcome: Result<(), Errno>) -> ExitCode {
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
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

    /// Why it failed, if it has ended and did.
    ///
    /// # Errors
    /// It was killed.
    pub fn failure(&mut self) -> io::Result<Option<Errno>> {
        match self.child.try_wait()? {
            None => Ok(None),
            Some(status) => match status.code() {
                Some(0) => Ok(None),
                Some(code) => Ok(Some(Errno::from_raw(code))),
                None => Err(io::Error::other(status.to_string())),
            },
        }
    }
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

/// A grace period of the kernel takes 10 to 30 ms.
const LINGER: Duration = Duration::from_millis(100);

/// The argument that nobody gives by hand.
const MARK: &str = "--left-over";
