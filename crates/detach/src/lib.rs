//! Leaves slow work of the kernel to a process that outlives its parent.
//!
//! A deleted link disappears within a millisecond, and so does an element of `nf_tables`. But the
//! kernel holds the calling process for another 15 to 30 ms, until all processors have released the
//! object (`rcu_barrier`). A thread cannot take over the wait, since a process ends with its last
//! thread. So an executable starts itself again with a [`Task`] as its argument, and continues as
//! soon as the object is gone.
//!
//! Process 1 inherits the new process and has to reap it, which every init does. In a pid
//! namespace, process 1 is often a daemon that reaps only its own children. So no process is
//! started there; the caller waits for the kernel itself.
//!
//! This crate does not know the tasks.

use std::env;
use std::fs::{self, DirEntry};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc::STDIN_FILENO;
use nix::sys::socket::{ControlMessage, MsgFlags, recvmsg, sendmsg};
use nix::unistd::close;

/// Task of a detached process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task(String);

impl Task {
    /// Returns the task that [`Detached::start`] gave to this process; `None` for an ordinary
    /// start. Call it before opening any file: it closes files that the runtime forgot to close.
    pub fn of_this_process() -> Option<Self> {
        let mut arguments = env::args_os().skip(1).map(|it| it.into_string().ok());
        let (mark, words) = (arguments.next()??, arguments.next()??);
        if mark != MARK {
            return None;
        }
        close_inherited();
        Some(Self(words))
    }

    /// Returns whether the task is only to close a file, which [`Self::end`] does.
    pub fn is_close(&self) -> bool {
        self.0 == CLOSE
    }

    /// Returns the words of [`Detached::start`].
    pub fn words(&self) -> &str {
        &self.0
    }

    /// Returns the exit status, from which [`Detached::outcome`] reads the reason of a failure.
    /// After a success it waits for a file from [`close_later`] or for the parent's end, and
    /// then until the file may be closed.
    pub fn end(&self, outcome: Result<(), Errno>) -> ExitCode {
        match outcome {
            Ok(()) => {
                if has_received_file() {
                    linger();
                }
                ExitCode::SUCCESS
            }
            Err(errno) => ExitCode::from(u8::try_from(errno as i32).unwrap_or(u8::MAX)),
        }
    }
}

/// A process of this executable that may outlive this one.
#[derive(Debug)]
pub struct Detached {
    child: Child,
    channel: UnixStream,
}

impl Detached {
    /// Starts this executable for the task with these words. It inherits no file of the caller.
    ///
    /// # Errors
    /// The process cannot be started, or this is not the initial pid namespace, in which alone it
    /// may outlive its parent.
    pub fn start(words: &str) -> io::Result<Self> {
        if !is_initial_pid_namespace() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (channel, theirs) = UnixStream::pair()?;
        let child = Command::new("/proc/self/exe")
            .args([MARK, words])
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child, channel })
    }

    /// Keeps the process for [`close_later`]. It ends with this process at the latest.
    pub fn keep(self) {
        kept().replace(self);
    }

    /// Passes `file` to the process, which closes it after its task. If the process has ended, only
    /// the caller closes it.
    fn close(&self, file: BorrowedFd<'_>) {
        let files = [file.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&files)];
        let (channel, byte) = (self.channel.as_raw_fd(), [IoSlice::new(b"f")]);
        // If the process has ended, the caller's own descriptor is the last one.
        sendmsg::<()>(channel, &byte, &rights, MsgFlags::MSG_NOSIGNAL, None).ok();
    }

    /// Returns the outcome if the process has ended.
    ///
    /// # Errors
    /// The process was killed.
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

/// Closes `file`, which takes long, in a process that may outlive this one: the kept one, or else a
/// new one. Closes it here if no process can be started.
pub fn close_later(file: impl AsFd) {
    let process = kept().take();
    if let Ok(process) = process.map_or_else(|| Detached::start(CLOSE), Ok) {
        process.close(file.as_fd());
    }
    drop(file);
}

/// The process that was kept last. It takes one file.
static KEPT: Mutex<Option<Detached>> = Mutex::new(None);

fn kept() -> MutexGuard<'static, Option<Detached>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether this is the initial pid namespace. The kernel gives it this inode
/// (`PROC_PID_INIT_INO`, since 6.18 in `include/uapi/linux/nsfs.h`), whatever /proc is mounted.
fn is_initial_pid_namespace() -> bool {
    let own = fs::metadata("/proc/self/ns/pid");
    own.is_ok_and(|it| it.ino() == INITIAL_PID_NAMESPACE)
}

/// Waits for the parent's file, which stays open until this process ends. Returns `false` if the
/// parent has ended or standard input is not a socket.
fn has_received_file() -> bool {
    let (mut byte, mut space) = ([0], cmsg_space!(RawFd));
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(STDIN_FILENO, &mut bytes, Some(&mut space), flags);
    let messages = received.and_then(|it| Ok(it.cmsgs()?.count()));
    messages.is_ok_and(|count| count > 0)
}

/// Waits until the file may be closed.
///
/// A process that closes an `nf_tables` socket holds the lock on all rules until the kernel has
/// freed all deleted objects. All changes of rules and deletions of links wait for it
/// (`nft_rcv_nl_event` and `nf_tables_netdev_event` in `net/netfilter`). So all these processes
/// close their sockets at the same moment: the first one waits, and the others find nothing left to
/// free.
fn linger() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let end = Instant::now() + until_close(now.unwrap_or_default());
    while let Some(rest) = end.checked_duration_since(Instant::now()) {
        thread::park_timeout(rest);
    }
}

/// Returns the time until the next moment for closing; `now` is the time of day.
fn until_close(now: Duration) -> Duration {
    let past = (now + GRACE).subsec_millis() % BETWEEN_CLOSES;
    GRACE + Duration::from_millis((BETWEEN_CLOSES - past).into())
}

/// Closes all files except standard input, output and error, which the parent set.
fn close_inherited() {
    let Ok(open) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let number = |entry: io::Result<DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let numbers: Vec<i32> = open.filter_map(number).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The directory's own descriptor is in the list and already closed.
        close(number).ok();
    }
}

const CLOSE: &str = "close";

const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// Time after which deleted objects are freed, unless others delete as well: a grace period of the
/// kernel takes 10 to 30 ms.
const GRACE: Duration = Duration::from_millis(50);

/// Milliseconds between moments for closing; they divide a second.
const BETWEEN_CLOSES: u32 = 500;

/// Argument that marks a detached process.
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
