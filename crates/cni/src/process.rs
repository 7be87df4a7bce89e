//! A plugin's process: its input, its output and its time limit.
//!
//! The caller never blocks on a process that does not read its request, that prints endless output,
//! or whose child keeps the output open. If a time limit is set, a process that never ends does not
//! block the caller either.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::error::Error;
use crate::stderr::note;

/// A plugin's process. Dropping this value kills a process that was not waited for.
#[derive(Debug)]
pub(crate) struct Process {
    /// The plugin's file name.
    pub name: String,
    child: Child,
    /// File descriptor of the process; it becomes readable when the process has ended.
    pidfd: OwnedFd,
    /// The unsent part of the request; `None` before [`Self::feed`].
    request: Option<Vec<u8>>,
    /// Time limit, counted from the first call of [`Self::feed`]. A process with a limit has its
    /// own process group. If the limit expires, the whole group is killed. A process without a
    /// limit stays in the caller's group, so Ctrl-C interrupts both.
    limit: Option<Duration>,
    deadline: Option<Instant>,
    /// Whether the process was waited for. If so, it must not be killed: another process may have
    /// its ID by now.
    is_reaped: bool,
}

impl Process {
    /// Starts `command`, the plugin called `name`. `limit` is the time that the process may take
    /// after it gets its request.
    pub fn start(
        name: &str,
        command: &mut Command,
        limit: Option<Duration>,
    ) -> Result<Self, Error> {
        if limit.is_some() {
            command.process_group(0);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.spawn().and_then(|mut child| {
            let number = rustix::process::Pid::from_child(&child);
            let pidfd = pidfd_open(number, PidfdFlags::empty()).inspect_err(|_| {
                child.kill().and_then(|()| child.wait()).ok();
            })?;
            Ok((child, pidfd))
        });
        let program = Path::new(command.get_program());
        let (child, pidfd) = started.map_err(Error::io(format!("start {}", program.display())))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            pidfd,
            request: None,
            limit,
            deadline: None,
            is_reaped: false,
        })
    }

    /// Starts the time limit and writes as much of the request as fits into the pipe at once. Later
    /// calls do nothing.
    pub fn feed(&mut self, request: &[u8]) -> Result<(), Error> {
        let (Some(pipe), None) = (&self.child.stdin, &self.request) else {
            return Ok(());
        };
        self.deadline = self.limit.and_then(|it| Instant::now().checked_add(it));
        let flags = FcntlArg::F_SETFL(OFlag::O_NONBLOCK);
        fcntl(pipe, flags).map_err(|errno| self.failed(errno))?;
        self.request = Some(request.to_vec());
        self.write()
    }

    /// Sends the unsent part of the request, waits until the process ends, and returns its output
    /// and status. `request` is the whole request. It is ignored if [`Self::feed`] was called
    /// before.
    pub fn finish(mut self, request: &[u8]) -> Result<(Vec<u8>, ExitStatus), Error> {
        self.feed(request)?;
        let mut output = Vec::new();
        loop {
            let [takes, prints, ended] = self.wait()?;
            if takes {
                self.write()?;
            }
            if prints {
                self.read(&mut output)?;
            } else if ended {
                // The plugin has ended, and its output was read. Children of the plugin may still
                // have the output open. The caller does not wait for them.
                let status = self.child.wait().map_err(|source| self.failed(source))?;
                self.is_reaped = true;
                return Ok((output, status));
            }
        }
    }

    /// Waits for an event of the process. Returns three values: whether the process can take more
    /// of its request, whether it has printed something or closed its output, and whether it has
    /// ended.
    fn wait(&self) -> Result<[bool; 3], Error> {
        let stdin = self.child.stdin.as_ref().map(|it| it.as_fd());
        let stdout = self.child.stdout.as_ref().map(|it| it.as_fd());
        let awaited = [
            (stdin, PollFlags::POLLOUT),
            (stdout, PollFlags::POLLIN),
            (Some(self.pidfd.as_fd()), PollFlags::POLLIN),
        ];
        let open = awaited.into_iter();
        let open = open.filter_map(|(file, flags)| Some(PollFd::new(file?, flags)));
        let mut files: Vec<_> = open.collect();
        match poll(&mut files, self.time_left()) {
            Ok(0) => return Err(self.too_late()),
            Err(Errno::EINTR) => return Ok([false; 3]),
            polled => polled.map_err(|errno| self.failed(errno))?,
        };
        let mut polled = files.iter().map(|file| file.any() == Some(true));
        Ok(awaited.map(|(file, _)| file.is_some() && polled.next() == Some(true)))
    }

    fn time_left(&self) -> PollTimeout {
        let Some(deadline) = self.deadline else {
            return PollTimeout::NONE;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        left.try_into().unwrap_or(PollTimeout::MAX)
    }

    fn write(&mut self) -> Result<(), Error> {
        let (Some(pipe), Some(rest)) = (&mut self.child.stdin, &mut self.request) else {
            return Ok(());
        };
        while !rest.is_empty() {
            match pipe.write(rest) {
                Ok(written) => drop(rest.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The process closed its input before it read the whole request. Its exit status
                // shows the reason.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.child.stdin = None;
        Ok(())
    }

    fn read(&mut self, output: &mut Vec<u8>) -> Result<(), Error> {
        let Some(stdout) = &mut self.child.stdout else {
            return Ok(());
        };
        let mut chunk = vec![0; PIPE_CAPACITY];
        let read = stdout.read(&mut chunk).map_err(|it| self.failed(it))?;
        if read == 0 {
            self.child.stdout = None;
        }
        output.extend(chunk.get(..read).unwrap_or_default());
        if output.len() > OUTPUT_LIMIT {
            let reason = format!("it printed more than {} MiB", OUTPUT_LIMIT >> 20);
            return Err(self.failed(io::Error::other(reason)));
        }
        Ok(())
    }

    fn too_late(&self) -> Error {
        let (name, time) = (&self.name, self.limit.unwrap_or_default());
        Error::TryAgain(format!(
            "{name} did not end within {time:?} and was killed; ipamTimeout says how long it may take"
        ))
    }

    fn failed(&self, source: impl Into<io::Error>) -> Error {
        Error::io(format!("run {}", self.name))(source.into())
    }

    /// Kills the process. If it has a time limit, also kills its process group. The group may
    /// contain children that outlive the process.
    fn kill(&mut self) -> io::Result<()> {
        if self.limit.is_none() {
            return self.child.kill();
        }
        let group = self.child.id().try_into().map_err(io::Error::other)?;
        Ok(killpg(Pid::from_raw(group), Signal::SIGKILL)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_reaped {
            return;
        }
        let killed = self.kill();
        let mut end = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        // A process that is blocked inside the kernel does not end on the signal, so the wait is
        // limited.
        if killed.is_ok() && poll(&mut end, KILLED).is_ok_and(|ended| ended > 0) {
            self.child.wait().ok();
        } else {
            let (name, number) = (&self.name, self.child.id());
            note(format_args!("{name} cannot be killed: process {number}"));
        }
    }
}

/// Maximum size of a plugin's output in bytes. A result with a few hundred interfaces takes less
/// than one MiB.
const OUTPUT_LIMIT: usize = 16 << 20;

/// Capacity of a pipe by default, in bytes: pipe(7).
const PIPE_CAPACITY: usize = 64 << 10;

/// Longest wait for the end of a killed process, in milliseconds.
const KILLED: u16 = 2_000;
