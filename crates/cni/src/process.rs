//! A process that this one starts: its input, its output and its limits.
//!
//! The caller never blocks on a process that does not read its request, that prints endless output,
//! or whose child keeps the output open. If a time limit is set, a process that never ends does not
//! block the caller either.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::{Error, note};

/// Runs `command`, which is no plugin, with `input` as its standard input. Returns its status and
/// what it printed on standard output and standard error. Kills it with its process group if it
/// exceeds a limit.
///
/// # Errors
/// - [`Error::Io`]: the program cannot be started, its output cannot be read or is larger than 64
///   MiB. [`Error::is_not_found`] tells whether the program is not installed.
/// - [`Error::TryAgain`]: the program took longer than `limit`.
pub fn output_of(command: &mut Command, input: &[u8], limit: Duration) -> Result<Output, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stderr(Stdio::piped());
    Process::start(&name, command, (Some(limit), PROGRAM_OUTPUT))?.finish(input)
}

/// A process. Dropping this value kills a process that was not waited for.
#[derive(Debug)]
pub(crate) struct Process {
    /// The program's file name.
    pub name: String,
    child: Child,
    /// Standard output, and standard error if it is a pipe; `None` at their ends.
    outputs: [Option<File>; 2],
    /// File descriptor of the process; it becomes readable when the process has ended.
    pidfd: OwnedFd,
    /// The unsent part of the request; `None` before [`Self::feed`].
    request: Option<Vec<u8>>,
    /// Time limit, counted from the first call of [`Process::feed`]. A process with this limit has
    /// its own process group. If the limit expires, the whole group is killed. A process without a
    /// limit stays in the caller's group, so Ctrl-C interrupts both.
    time: Option<Duration>,
    deadline: Option<Instant>,
    /// Limit of the bytes of standard output, and of standard error if it is a pipe.
    output: usize,
    /// Whether the process was waited for. If so, it must not be killed: another process may have
    /// its ID by now.
    is_reaped: bool,
}

impl Process {
    /// Starts `command`, the program called `name`. `time` and `output` are its limits.
    pub fn start(
        name: &str,
        command: &mut Command,
        (time, output): (Option<Duration>, usize),
    ) -> Result<Self, Error> {
        if time.is_some() {
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
        let (mut child, pidfd) =
            started.map_err(Error::io(format!("start {}", program.display())))?;
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        Ok(Self {
            name: name.to_owned(),
            child,
            outputs: [stdout, stderr].map(|it| it.map(File::from)),
            pidfd,
            request: None,
            time,
            deadline: None,
            output,
            is_reaped: false,
        })
    }

    /// Starts the time limit and writes as much of the request as fits into the pipe at once. Later
    /// calls do nothing.
    pub fn feed(&mut self, request: &[u8]) -> Result<(), Error> {
        let (Some(pipe), None) = (&self.child.stdin, &self.request) else {
            return Ok(());
        };
        self.deadline = self.time.and_then(|it| Instant::now().checked_add(it));
        let flags = FcntlArg::F_SETFL(OFlag::O_NONBLOCK);
        fcntl(pipe, flags).map_err(|errno| self.failed(errno))?;
        self.request = Some(request.to_vec());
        self.write()
    }

    /// Sends the unsent part of the request, waits until the process ends, and returns its status
    /// and its output. `request` is the whole request. It is ignored if [`Self::feed`] was called
    /// before.
    pub fn finish(mut self, request: &[u8]) -> Result<Output, Error> {
        self.feed(request)?;
        let mut printed = [Vec::new(), Vec::new()];
        loop {
            let [takes, prints, complains, ended] = self.wait()?;
            if takes {
                self.write()?;
            }
            for (number, _) in [prints, complains].iter().enumerate().filter(|it| *it.1) {
                self.read(number, &mut printed)?;
            }
            if ended && !prints && !complains {
                // The process has ended, and its output was read. Its children may still have the
                // output open. The caller does not wait for them.
                let status = self.child.wait().map_err(|source| self.failed(source))?;
                self.is_reaped = true;
                let [stdout, stderr] = printed;
                return Ok(Output {
                    status,
                    stdout,
                    stderr,
                });
            }
        }
    }

    /// Waits for an event of the process. Returns four values: whether the process can take more
    /// of its request, whether it has printed something or closed its output, the same for standard
    /// error, and whether it has ended.
    fn wait(&self) -> Result<[bool; 4], Error> {
        let stdin = self.child.stdin.as_ref().map(|it| it.as_fd());
        let [stdout, stderr] = self.outputs.each_ref().map(|it| Some(it.as_ref()?.as_fd()));
        let awaited = [
            (stdin, PollFlags::POLLOUT),
            (stdout, PollFlags::POLLIN),
            (stderr, PollFlags::POLLIN),
            (Some(self.pidfd.as_fd()), PollFlags::POLLIN),
        ];
        let open = awaited.into_iter();
        let open = open.filter_map(|(file, flags)| Some(PollFd::new(file?, flags)));
        let mut files: Vec<_> = open.collect();
        match poll(&mut files, self.time_left()) {
            Ok(0) => return Err(self.too_late()),
            Err(Errno::EINTR) => return Ok([false; 4]),
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

    /// Reads some output: for `number` 0 of standard output, for 1 of standard error.
    fn read(&mut self, number: usize, printed: &mut [Vec<u8>; 2]) -> Result<(), Error> {
        let (Some(output), Some(bytes)) = (self.outputs.get_mut(number), printed.get_mut(number))
        else {
            return Ok(());
        };
        let Some(file) = output else {
            return Ok(());
        };
        let mut chunk = vec![0; PIPE_CAPACITY];
        match file.read(&mut chunk) {
            Ok(0) => *output = None,
            Ok(read) => bytes.extend(chunk.get(..read).unwrap_or_default()),
            Err(error) => return Err(self.failed(error)),
        }
        if bytes.len() > self.output {
            let reason = format!("it printed more than {} MiB", self.output >> 20);
            return Err(self.failed(io::Error::other(reason)));
        }
        Ok(())
    }

    fn too_late(&self) -> Error {
        let (name, time) = (&self.name, self.time.unwrap_or_default());
        Error::TryAgain(format!("{name} did not end within {time:?} and was killed"))
    }

    fn failed(&self, source: impl Into<io::Error>) -> Error {
        Error::io(format!("run {}", self.name))(source.into())
    }

    /// Kills the process. If it has a time limit, also kills its process group. The group may
    /// contain children that outlive the process.
    fn kill(&mut self) -> io::Result<()> {
        if self.time.is_none() {
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
            note!("{name} cannot be killed: process {number}");
        }
    }
}

/// Maximum size of a program's output in bytes. `iptables-save` prints 100,000 rules in less.
const PROGRAM_OUTPUT: usize = 64 << 20;

/// Capacity of a pipe by default, in bytes: pipe(7).
const PIPE_CAPACITY: usize = 64 << 10;

/// Longest wait for the end of a killed process, in milliseconds.
const KILLED: u16 = 2_000;
