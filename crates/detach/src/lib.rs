//! Moves long waits for the kernel to a process that outlives its parent.
//!
//! A deleted network interface or `nf_tables` element disappears within a millisecond. But the
//! kernel blocks a process for another 15 to 30 ms, until all processors have released the object
//! (`rcu_barrier`): the process that deletes the interface, or the process that closes its
//! `nf_tables` socket after a deletion. A thread cannot take over this wait, because a process ends
//! only with its last thread.
//!
//! So an executable starts itself again with a [`Task`] as argument for a deletion, and continues as
//! soon as the object has disappeared. It leaves its sockets to that process, or else, at its end, to
//! a copy of itself ([`end`]). The new process waits for the kernel.
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
use std::mem;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
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
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{ControlMessage, MsgFlags, recvmsg, sendmsg};
use nix::unistd::{close, daemon};

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
        close_all_but(&[]);
        Some(Self(words))
    }

    /// Carries out a task of this crate itself, and returns the exit status of this process. Returns
    /// `None` for a task of the caller.
    pub fn carry_out(&self) -> Option<ExitCode> {
        reaping::run(&self.0)
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
        if !may_leave_processes() {
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
        lock(&KEPT).replace(self);
    }

    /// Passes `file` to the detached process, which closes it after its task.
    ///
    /// # Errors
    /// The detached process has ended.
    fn close(&self, file: &impl AsFd) -> Result<(), Errno> {
        let files = [file.as_fd().as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&files)];
        let (channel, byte) = (self.channel.as_raw_fd(), [IoSlice::new(b"f")]);
        sendmsg::<()>(channel, &byte, &rights, MsgFlags::MSG_NOSIGNAL, None).map(drop)
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

/// Closes `file` in a process that outlives the current one, since the close takes long: in the one
/// that [`Detached::keep`] kept, or else as [`end`] describes.
pub fn close_later(file: impl AsFd + Send + 'static) {
    let process = lock(&KEPT).take();
    if process.is_none_or(|it| it.close(&file).is_err()) {
        lock(&LEFT).push(Box::new(file));
    }
}

/// Returns `status`, the exit status of this process. If [`close_later`] has left files and `status` is
/// that of success, the process ends at once instead, and a copy of it closes the files. If there can
/// be no copy, this process closes them.
pub fn end(status: ExitCode) -> ExitCode {
    let left = mem::take(&mut *lock(&LEFT));
    let is_wanted = !left.is_empty() && status == ExitCode::SUCCESS;
    if is_wanted && is_single_threaded() && may_leave_processes() && daemon(false, false).is_ok() {
        let numbers: Vec<_> = left.iter().map(|it| it.as_fd().as_raw_fd()).collect();
        close_all_but(&numbers);
        linger();
    }
    status
}

/// Returns whether this process has one thread. In a copy of several, memory may stay locked by a
/// thread that the copy lacks.
fn is_single_threaded() -> bool {
    unshare(CloneFlags::CLONE_THREAD).is_ok()
}

/// Returns whether processes may outlive this one, because process 1 reaps them.
fn may_leave_processes() -> bool {
    is_initial_pid_namespace() || reaping::process_1_reaps()
}

/// The process that [`Detached::keep`] kept last. [`close_later`] passes its next file to this
/// process.
static KEPT: Mutex<Option<Detached>> = Mutex::new(None);

/// The files that [`end`] closes.
static LEFT: Mutex<Vec<Box<dyn AsFd + Send>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Closes all files except standard input, output and error, and `kept`.
fn close_all_but(kept: &[RawFd]) {
    let Ok(open) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let number = |entry: io::Result<DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let numbers: Vec<i32> = open.filter_map(number).collect();
    for number in numbers
        .into_iter()
        .filter(|it| *it > 2 && !kept.contains(it))
    {
        // One number in the list is the descriptor of the listed directory itself, which is already
        // closed, so errors are ignored.
        close(number).ok();
    }
}

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
