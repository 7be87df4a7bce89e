//! Injects faults by strace(1): makes system calls fail, or kills the process at one.
//!
//! strace counts calls per thread. The Nth call is the one of the thread with the most calls, and
//! also of every other thread that makes N calls. So a second thread's first call can only be hit
//! by its file if the first thread makes such calls, too. Executed programs are not followed; a
//! script in a delegate's place traces the delegate.
//!
//! This module does not know a plugin's purpose or the conditions after a fault.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use nix::errno::Errno;
use serde_json::Value;

use crate::tally::Ended;
use crate::{Invocation, Outcome};

/// Seconds; longer than any deadline of a plugin.
const PATIENCE: &str = "60";

/// Calls with varying numbers. Memory requests depend on addresses; the C library starts and ends
/// threads. A waiting thread wakes once per event, and answers arrive in a varying number of
/// pieces.
pub const UNSTEADY: [&str; 22] = [
    "brk",
    "exit",
    "exit_group",
    "futex",
    "getrandom",
    "gettid",
    "madvise",
    "mmap",
    "mprotect",
    "munmap",
    "poll",
    "prlimit64",
    "recvfrom",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "sched_getaffinity",
    "sched_yield",
    "set_robust_list",
    "sigaltstack",
    "wait4",
];

/// A call of a run.
#[derive(Debug, Clone)]
pub struct Call {
    name: String,
    /// Number among the calls of that name, from 1; on `path`, if it is set.
    number: usize,
    path: Option<String>,
    /// strace's line of the call in the recorded run.
    line: String,
}

/// Effect of a fault on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// The call fails with this error and does nothing.
    Error(Errno),
    /// The kernel receives the netlink message and refuses it: its type does not exist.
    Refusal,
    /// The process receives this error instead of the kernel's answer.
    Answer(Errno),
    /// The process is killed before the call.
    Kill,
}

/// A call and the effect on it.
#[derive(Debug, Clone)]
pub struct Fault {
    call: Call,
    harm: Harm,
}

/// All calls of a run, in order.
#[derive(Debug)]
pub struct Trace {
    lines: Vec<String>,
}

impl Trace {
    /// Runs `invocation`, which must succeed, and reads its calls.
    #[track_caller]
    pub fn of(invocation: &Invocation, file: &Path) -> Self {
        invocation.clone().under(&strace(file)).ok();
        Self::read(file)
    }

    /// Reads the calls that strace wrote to `file`.
    pub fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file);
        let text = text.unwrap_or_else(|error| panic!("strace: {}: {error}", file.display()));
        Self {
            // Writing a sysctl restarts thousands of times while another process holds the kernel's
            // lock.
            lines: text
                .lines()
                .filter(|line| !line.contains("= ? ERESTART"))
                .map(str::to_owned)
                .collect(),
        }
    }

    /// Removes calls of that name after the first call that mentions `word`.
    pub fn without_after(mut self, word: &str, name: &str) -> Self {
        let end = self.lines.iter().position(|line| line.contains(word));
        let mut number = 0;
        self.lines.retain(|line| {
            number += 1;
            end.is_none_or(|end| number <= end) || called(line) != Some(name)
        });
        self
    }

    /// Returns the calls of that name in the thread that makes the most of them.
    pub fn calls(&self, name: &str) -> Vec<Call> {
        self.numbered(name, None)
    }

    /// Returns the calls of that name on each file whose path starts with `prefix`.
    pub fn calls_below(&self, name: &str, prefix: &str) -> Vec<Call> {
        let of_name = self.lines.iter().filter(|line| called(line) == Some(name));
        let mut paths: Vec<_> = of_name.filter_map(|line| path(line, prefix)).collect();
        paths.sort_unstable();
        paths.dedup();
        let calls = paths.iter().map(|path| self.numbered(name, Some(path)));
        calls.flatten().collect()
    }

    /// Returns the number of each call in all threads, except for [`UNSTEADY`] ones. It starts with
    /// the first read of standard input, because earlier calls belong to the C library.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let is_start = |line: &&String| !line.contains(" read(0<");
        let mut counts = BTreeMap::new();
        for name in self
            .lines
            .iter()
            .skip_while(is_start)
            .filter_map(|it| called(it))
        {
            if !UNSTEADY.contains(&name) {
                *counts.entry(name.to_owned()).or_default() += 1;
            }
        }
        counts
    }

    /// Returns the bytes that sockets received, in all threads.
    pub fn received(&self) -> usize {
        let ended = ["recvfrom(", "<... recvfrom resumed>"];
        let lines = self.lines.iter();
        let lines = lines.filter(|line| ended.iter().any(|it| line.contains(it)));
        let results = lines.filter_map(|line| line.rsplit_once(" = "));
        results
            .filter_map(|(_, result)| result.parse::<usize>().ok())
            .sum()
    }

    fn numbered(&self, name: &str, on: Option<&str>) -> Vec<Call> {
        let mut threads: BTreeMap<&str, Vec<Call>> = BTreeMap::new();
        let wanted = self.lines.iter().filter(|line| {
            called(line) == Some(name) && on.is_none_or(|on| path(line, on) == Some(on))
        });
        for line in wanted {
            let thread = line.split_whitespace().next().unwrap_or_default();
            let calls = threads.entry(thread).or_default();
            calls.push(Call {
                name: name.to_owned(),
                number: calls.len() + 1,
                path: on.map(str::to_owned),
                line: line.clone(),
            });
        }
        let most = threads.into_values().max_by_key(Vec::len);
        most.unwrap_or_default()
    }
}

impl Call {
    /// Returns strace's line of the call.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Returns the call's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the call receives a netlink message.
    pub fn is_answer(&self) -> bool {
        self.line.contains("nlmsg_seq=")
    }

    /// Returns whether the call only wakes the thread that waits for sockets.
    pub fn is_wake(&self) -> bool {
        self.line.contains("anon_inode:[eventfd]")
    }

    /// Returns the fault of this call with this effect.
    pub fn with(&self, harm: Harm) -> Fault {
        let call = self.clone();
        Fault { call, harm }
    }
}

impl Fault {
    /// Returns the invocation with the fault; `file` gets the calls until then.
    pub fn strikes(&self, invocation: &Invocation, file: &Path) -> Invocation {
        invocation.clone().under(&self.strace(file))
    }

    /// Returns the words of a command line that inject the fault into the following command.
    pub fn strace(&self, file: &Path) -> Vec<String> {
        let Call { name, number, .. } = &self.call;
        let harm = match self.harm {
            Harm::Error(errno) => format!("error={errno:?}"),
            Harm::Kill => "signal=KILL".into(),
            Harm::Refusal => format!("poke_enter=@arg2={}", self.call.unknown_type()),
            Harm::Answer(errno) => format!("poke_exit=@arg2={}", self.call.error(errno)),
        };
        let mut strace = strace(file);
        strace.extend(["-e".into(), format!("trace={name}")]);
        let path = self.call.path.iter();
        strace.extend(path.flat_map(|path| ["-P".into(), path.clone()]));
        let inject = format!("inject={name}:{harm}:when={number}");
        strace.extend(["-e".into(), inject]);
        strace
    }

    /// Returns the effect.
    pub fn harm(&self) -> Harm {
        self.harm
    }
}

impl Harm {
    /// Returns how a run with this fault ended.
    ///
    /// # Errors
    /// It failed without an error object, or hung although no message was changed.
    pub fn ended(self, outcome: &Outcome) -> Result<Ended, String> {
        match outcome.status.code() {
            Some(0) => Ok(Ended::Succeeded),
            // timeout(1) ends like the program that it runs, or reports its signal as 137.
            None | Some(137) if self == Self::Kill => Ok(Ended::Killed),
            Some(124) if matches!(self, Self::Answer(_) | Self::Refusal) => Ok(Ended::Hung),
            // The fault may hit another thread's first write, too: the one of the error object.
            Some(1) if outcome.stderr.contains("write the result to stdout") => Ok(Ended::Failed),
            _ => match serde_json::from_str::<Value>(&outcome.stdout) {
                Ok(object) if object["code"].is_u64() => Ok(Ended::Failed),
                _ => Err(format!("no error object: {outcome:?}")),
            },
        }
    }
}

impl Call {
    /// Returns the start of the message (struct nlmsghdr) in hexadecimal digits: its original
    /// length, and type 0xffff.
    fn unknown_type(&self) -> String {
        let bytes = self.number_after("nlmsg_len=").to_ne_bytes();
        digits(&[&bytes, &[0xff, 0xff]])
    }

    /// Returns a message of type `NLMSG_ERROR` with the answered request's number, as long as the
    /// received data. It does not contain the refused request (`NLM_F_CAPPED`).
    fn error(&self, errno: Errno) -> String {
        let length = self
            .line
            .rsplit_once(" = ")
            .and_then(|(_, it)| it.parse().ok());
        let length: u32 = length.expect("a length");
        let (kind, flags) = (2_u16.to_ne_bytes(), 0x100_u16.to_ne_bytes());
        let sequence = self.number_after("nlmsg_seq=").to_ne_bytes();
        let error = (errno as i32).wrapping_neg().to_ne_bytes();
        let (port, refused) = ([0; 4], [0; 16]);
        let message: [&[u8]; 7] = [
            &length.to_ne_bytes(),
            &kind,
            &flags,
            &sequence,
            &port,
            &error,
            &refused,
        ];
        digits(&message)
    }

    fn number_after(&self, key: &str) -> u32 {
        let (_, rest) = self.line.split_once(key).expect("a message");
        let digits = rest.split(|it: char| !it.is_ascii_digit()).next();
        digits.and_then(|it| it.parse().ok()).expect("a number")
    }
}

fn digits(bytes: &[&[u8]]) -> String {
    let digits = bytes.concat();
    let digits = digits.iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.strace(Path::new("/dev/null"));
        let line: String = self.call.line.chars().take(180).collect();
        write!(formatter, "{} at: {line}", words.join(" "))
    }
}

/// Returns the words of a command line that record the calls of the following command and its
/// threads, but not of programs that it executes. A command that hangs ends with status 124.
pub fn strace(file: &Path) -> Vec<String> {
    let words = format!("timeout {PATIENCE} strace -f -b execve -y -e signal=none -o");
    let mut words: Vec<_> = words.split(' ').map(str::to_owned).collect();
    words.push(file.display().to_string());
    words
}

/// Returns the name in `10807 sendto(8, …`; `None` for continued calls and other lines.
fn called(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(char::is_whitespace)?;
    let (name, _) = rest.trim_start().split_once('(')?;
    let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
    name.chars().all(is_name).then_some(name)
}

/// Returns the first path in `line` that starts with `prefix`, as an argument or of an open file.
fn path<'l>(line: &'l str, prefix: &str) -> Option<&'l str> {
    let from = ['"', '<'].iter().filter_map(|before| {
        let (at, _) = line.match_indices(&format!("{before}{prefix}")).next()?;
        Some(at + 1)
    });
    let rest = &line[from.min()?..];
    rest.split(['"', '>']).next()
}
