//! Moves long waits for the kernel to a process that outlives its parent.
//!
//! A deleted network interface or `nf_tables` element disappears within a millisecond. But the
//! kernel blocks a process for another 15 to 30 ms, until all processors have released the object
//! (`rcu_barrier`): the process that deletes the interface, or the process that closes its
//! `nf_tables` socket after a deletion. A thread cannot take over this wait, because a process ends
//! only with its last thread. So an executable starts itself again with a [`Task`] as argument. The
//! first process continues as soon as the object has disappeared, and the new one waits for the
//! kernel.
//!
//! When the parent ends, process 1 inherits the new process and has to reap it, which every init
//! does. In a container with a pid namespace, process 1 is often a daemon that reaps only its own
//! children, so the new process would stay as a zombie. So this crate starts no process in a
//! namespace whose process 1 is not proven to reap (`reaping.rs`), and the caller waits for the
//! kernel itself.
//!
//! This crate does not know what the tasks do.

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

mod reaping;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc::STDIN_FILENO;
use nix::sys::socket::{ControlMessage, MsgFlags, recvmsg, sendmsg};
use nix::unistd::close;

/// The work of a detached process, as text that the parent passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task(String);

impl Task {
    /// Returns the task that [`Detached::start`] gave to this process; `None` for an ordinary
    /// start. The caller must call this function before it opens a file. In a process with a task,
    /// this function closes all inherited files except descriptors 0 to 2.
    pub fn of_this_process() -> Option<Self> {
        let mut arguments = env::args_os().skip(1).map(|it| it.into_string().ok());
        let (mark, words) = (arguments.next()??, arguments.next()??);
        if mark != MARK {
            return None;
        }
        close_inherited();
        Some(Self(words))
    }

    /// Carries out a task of this crate itself, and returns the exit status of this process. Returns
    /// `None` for a task of the caller.
    pub fn carry_out(&self) -> Option<ExitCode> {
        match self.0.as_str() {
            CLOSE => Some(self.end(Ok(()))),
            words => reaping::run(words),
        }
    }

    /// Returns the words that the parent passed to [`Detached::start`].
    pub fn words(&self) -> &str {
        &self.0
    }

    /// Finishes the task and returns the exit status of this process. If the task failed, the
    /// status is the error number, which [`Detached::outcome`] returns in the parent. If the task
    /// succeeded, this function first waits until the parent passes a file by [`close_later`] or
    /// ends. After the parent has passed a file, this function also waits for the next moment at
    /// which all detached processes close their files. The kernel closes the file when this process
    /// ends.
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

/// A child process that runs this executable with a [`Task`], and may outlive the current process.
#[derive(Debug)]
pub struct Detached {
    child: Child,
    channel: UnixStream,
}

impl Detached {
    /// Starts this executable with the task `words`. The new process inherits no file of the
    /// caller.
    ///
    /// # Errors
    /// The process cannot be started, or process 1 of the caller's pid namespace may not reap it.
    pub fn start(words: &str) -> io::Result<Self> {
        if !is_initial_pid_namespace() && !reaping::process_1_reaps() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (channel, theirs) = UnixStream::pair()?;
        let child = this_executable(words)
            .stdin(OwnedFd::from(theirs))
            .spawn()?;
        Ok(Self { child, channel })
    }

    /// Keeps the detached process, so that the next call of [`close_later`] passes a file to this
    /// process. Without such a call, the detached process ends when its task is done and the
    /// current process has ended.
    pub fn keep(self) {
        kept().replace(self);
    }

    /// Passes `file` to the detached process, which closes it after its task. If the detached
    /// process has already ended, the function does nothing, and the caller closes the file itself.
    fn close(&self, file: BorrowedFd<'_>) {
        let files = [file.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&files)];
        let (channel, byte) = (self.channel.as_raw_fd(), [IoSlice::new(b"f")]);
        // An error means that the detached process has ended. Then the caller closes the file
        // itself.
        sendmsg::<()>(channel, &byte, &rights, MsgFlags::MSG_NOSIGNAL, None).ok();
    }

    /// Returns the outcome of the task; `None` while the process runs.
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

fn this_executable(words: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .args([MARK, words])
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Closes `file` in a process that may outlive the current one, since the close takes long. Uses
/// the process that [`Detached::keep`] kept, or else starts one. If no process can take `file`,
/// closes it in the current process.
pub fn close_later(file: impl AsFd) {
    let process = kept().take();
    if let Ok(process) = process.map_or_else(|| Detached::start(CLOSE), Ok) {
        process.close(file.as_fd());
    }
    drop(file);
}

/// The process that [`Detached::keep`] kept last. [`close_later`] passes its next file to this
/// process.
static KEPT: Mutex<Option<Detached>> = Mutex::new(None);

fn kept() -> MutexGuard<'static, Option<Detached>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether this process is in the initial pid namespace. The kernel gives that namespace a
/// fixed inode (`PROC_PID_INIT_INO`; newer kernels also call it `PID_NS_INIT_INO` in
/// `include/uapi/linux/nsfs.h`). The inode does not depend on the pid namespace that the mounted
/// /proc shows.
fn is_initial_pid_namespace() -> bool {
    let own = fs::metadata("/proc/self/ns/pid");
    own.is_ok_and(|it| it.ino() == INITIAL_PID_NAMESPACE)
}

/// Waits until the parent passes a file, which then stays open until this process ends. Returns
/// `false` if the parent has ended without a file, or if standard input is not a socket.
fn has_received_file() -> bool {
    let (mut byte, mut space) = ([0], cmsg_space!(RawFd));
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(STDIN_FILENO, &mut bytes, Some(&mut space), flags);
    let messages = received.and_then(|it| Ok(it.cmsgs()?.count()));
    messages.is_ok_and(|count| count > 0)
}

/// Waits for the next common moment at which detached processes close their files.
///
/// A process that closes an `nf_tables` socket holds the lock on all rules until the kernel has
/// freed all deleted objects. All changes of rules and deletions of network interfaces wait for
/// that lock (`nft_rcv_nl_event` and `nf_tables_netdev_event` in `net/netfilter`). So all detached
/// processes close their sockets at the same moments. The first process that closes waits for the
/// kernel, and the others find nothing left to free.
fn linger() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let end = Instant::now() + until_close(now.unwrap_or_default());
    while let Some(rest) = end.checked_duration_since(Instant::now()) {
        thread::park_timeout(rest);
    }
}

/// Returns the time until the next moment at which all detached processes close their files. The
/// moment is more than `GRACE` away, so the kernel has usually freed the deleted objects by then.
/// `now` is the time since 1970.
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
        // One number in the list is the descriptor of the listed directory itself, which is already
        // closed, so errors are ignored.
        close(number).ok();
    }
}

/// Task of a process that only closes a file.
const CLOSE: &str = "close";

/// Inode of the initial pid namespace (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// Upper bound of the time in which the kernel frees deleted objects, if no other process deletes
/// objects meanwhile. A grace period (RCU) of the kernel takes 10 to 30 ms.
const GRACE: Duration = Duration::from_millis(50);

/// Milliseconds between two moments at which all detached processes close their files. The number
/// must divide 1,000, because [`until_close`] counts from the start of the current second.
const BETWEEN_CLOSES: u32 = 500;

/// First argument of a detached process. It shows the process that the next argument is its task.
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
