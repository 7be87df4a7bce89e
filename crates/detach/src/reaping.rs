//! Finds out by a trial whether process 1 of a container's pid namespace reaps processes whose
//! parents have ended, as an init does and many a daemon does not.
//!
//! The trial costs some milliseconds, and leaves one zombie where process 1 does not reap. So a file
//! has its result for each pid namespace and boot.

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::this_executable;

/// Returns whether process 1 of this process's pid namespace reaps. Returns `false` if that is
/// unknown, also while another process tries it.
pub(crate) fn process_1_reaps() -> bool {
    let Some(result) = result_file() else {
        return false;
    };
    if let Ok(text) = fs::read_to_string(&result) {
        return text == REAPS;
    }
    try_once(&result).unwrap_or(false)
}

/// Tries it, unless another process has begun to.
fn try_once(result: &Path) -> io::Result<bool> {
    fs::create_dir_all(DIRECTORY)?;
    fs::set_permissions(DIRECTORY, Permissions::from_mode(0o755))?;
    let mut file = File::create_new(result)?;
    let reaps = is_orphan_reaped()?;
    if reaps {
        file.write_all(REAPS.as_bytes())?;
    }
    Ok(reaps)
}

/// Returns the file with the result. Its name identifies the pid namespace: by the boot, its inode,
/// and the start of its process 1, because the kernel uses an inode again. Returns `None` if /proc
/// is not of this pid namespace, so that it does not show its process 1.
fn result_file() -> Option<PathBuf> {
    let own = fs::read_link("/proc/self").ok()?;
    if own.to_str()? != process::id().to_string() {
        return None;
    }
    let inode = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    let status = fs::read_to_string("/proc/1/stat").ok()?;
    let (_, fields) = status.rsplit_once(") ")?;
    let start = fields.split(' ').nth(START)?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(Path::new(DIRECTORY).join(format!("{}-{inode}-{start}", boot.trim())))
}

/// Makes a process whose parent ends, and returns whether it vanishes.
fn is_orphan_reaped() -> io::Result<bool> {
    let (mut channel, theirs) = UnixStream::pair()?;
    let stdin = OwnedFd::from(theirs);
    this_executable(PARENT).stdin(stdin).spawn()?.wait()?;
    let mut number = [0; 4];
    channel.read_exact(&mut number)?;
    let orphan = Pid::from_raw(i32::from_ne_bytes(number));
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if kill(orphan, None) == Err(Errno::ESRCH) {
            return Ok(true);
        }
        thread::park_timeout(BETWEEN_LOOKS);
    }
    Ok(false)
}

/// Runs the task `words` if it is a part of the trial; returns `None` otherwise.
pub(crate) fn run(words: &str) -> Option<ExitCode> {
    match words {
        PARENT => Some(leave_orphan().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)),
        ORPHAN => Some(ExitCode::SUCCESS),
        _ => None,
    }
}

/// Starts a process and ends, after it has reported the new process's number by standard input.
fn leave_orphan() -> io::Result<()> {
    let orphan = this_executable(ORPHAN).spawn()?;
    let channel = io::stdin().as_fd().try_clone_to_owned()?;
    UnixStream::from(channel).write_all(&orphan.id().to_ne_bytes())
}

const DIRECTORY: &str = "/run/cni/reaping";

/// Text of the result where process 1 reaps.
const REAPS: &str = "process 1 reaps\n";

/// Place of the process's start in `/proc/PID/stat`, behind its name.
const START: usize = 19;

/// Longest wait for process 1. An init reaps within a millisecond.
const PATIENCE: Duration = Duration::from_millis(200);
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Tasks of the trial.
const PARENT: &str = "leave an orphan";
const ORPHAN: &str = "end as an orphan";
