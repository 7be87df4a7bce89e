//! Deletes a link without waiting until the kernel has freed it.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use detach::{Detached, Task};
use nix::errno::Errno;

use crate::monitor::Verdict;
use crate::{Connection, Error, Link, Monitor, Refusal, found};

impl Connection {
    /// Deletes the link and returns as soon as no process can find the link. An absent link counts
    /// as deleted. The `main` of the executable has to call [`run`], because a child process of the
    /// same executable does the work.
    ///
    /// # Errors
    /// As [`Self::delete_link`], except for a link that does not exist; [`Error::Timeout`].
    pub fn remove_link(&self, link: &Link) -> Result<(), Error> {
        // A child process is in the namespace of the calling thread.
        let deleted = if self.is_of_this_thread() {
            self.delete_elsewhere(link)
        } else {
            self.delete_link(link)
        };
        found(deleted).map(drop)
    }

    /// Deletes the link for [`Self::remove_link`], which ignores the error for an absent link.
    ///
    /// A child process sends the request to the kernel and waits for the answer. This function
    /// returns 15 to 30 ms before the answer: as soon as an event reports the deletion.
    ///
    /// If no child process can be started, this function deletes the link itself and takes as long
    /// as [`Self::delete_link`]. [`Detached::start`] starts no process outside the initial pid
    /// namespace, because process 1 of a container may not reap it.
    fn delete_elsewhere(&self, link: &Link) -> Result<(), Error> {
        let here = || self.delete_link(link);
        // The monitor listens before the deletion starts, so it receives the event of the deletion
        // and sends no request. A request would wait for the RTNL lock, which the kernel holds
        // during the deletion.
        let Ok(monitor) = Monitor::open() else {
            return here();
        };
        let Ok(mut child) = Detached::start(&format!("{DELETE}{}", link.index)) else {
            return here();
        };
        let start = Instant::now();
        while start.elapsed() < DEADLINE {
            let is_gone = match monitor.deletion_within(link.index, BETWEEN_LOOKS) {
                Verdict::Found(()) => true,
                Verdict::Nothing => false,
                Verdict::MayBe => {
                    let found = self.link_by_index(link.index);
                    found.is_err_and(|error| error.is_not_found())
                }
            };
            if is_gone {
                child.keep();
                return Ok(());
            }
            match child.outcome() {
                Ok(None) => {}
                Ok(Some(Ok(()))) => return Ok(()),
                Ok(Some(Err(errno))) => {
                    let operation = format!("{DELETE}{}", link.name);
                    let refusal = Refusal {
                        errno,
                        message: None,
                    };
                    return Err(Error::Refused { operation, refusal });
                }
                // The child process was killed before it reported an outcome, so this process
                // deletes the link.
                Err(_) => return here(),
            }
        }
        Err(Error::Timeout {
            what: format!("link {} to be gone", link.name),
            after: DEADLINE,
        })
    }
}

/// Runs `main`, and then leaves the sockets of [`crate::Socket::close_later`] to a copy of this process.
/// If another process of this executable started this process to delete a link for
/// [`Connection::remove_link`], does that instead.
pub fn run(main: impl FnOnce() -> ExitCode) -> ExitCode {
    match Task::of_this_process() {
        None => detach::end(main()),
        Some(task) => task.carry_out().unwrap_or_else(|| {
            let deleted = delete(task.words());
            task.end(deleted.map_err(|error| error.errno().unwrap_or(Errno::EIO)))
        }),
    }
}

fn delete(task: &str) -> Result<(), Error> {
    let index = task.strip_prefix(DELETE).and_then(|it| it.parse().ok());
    let index = index.ok_or_else(|| Error::Open {
        source: io::ErrorKind::InvalidInput.into(),
    })?;
    Connection::open()?.delete_index(index, task.to_owned())
}

const DELETE: &str = "delete link ";

/// Time between two looks at the child process that deletes the link ([`Detached::outcome`]).
/// [`Connection::remove_link`] has to look, because the kernel reports a refused deletion only to
/// this child process, not as an event.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Longest wait for the deletion. On a healthy host, the kernel never holds the RTNL lock that
/// long.
const DEADLINE: Duration = Duration::from_secs(30);
