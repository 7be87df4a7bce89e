//! Points of a run at which faults are injected, and the faults.
//!
//! Between two calls that change or request something, all instants are equivalent.

use nix::errno::Errno;

use crate::faults::{Call, Fault, Harm, Trace};

/// Kind of the fault that is injected at each call in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// The call fails, with each of its possible errors.
    Failure,
    /// The kernel refuses a message, or carries it out but reports an error.
    Refusal,
    /// The process is killed.
    Kill,
}

impl Attack {
    /// Returns the name for the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::Refusal => "refusal",
            Self::Kill => "kill",
        }
    }

    /// Returns all its faults for the run of `trace`.
    pub fn faults(self, trace: &Trace) -> Vec<Fault> {
        match self {
            Self::Failure => {
                let calls = calls(trace).into_iter();
                let of = |call: Call| {
                    let errors = errors(call.name()).iter();
                    errors.map(move |error| call.with(Harm::Error(*error)))
                };
                calls.flat_map(of).collect()
            }
            Self::Refusal => refusals(trace),
            Self::Kill => {
                let last = trace.calls("exit_group");
                let wakers = trace.calls("write").into_iter().filter(Call::is_wake);
                let calls = calls(trace).into_iter().chain(wakers).chain(last);
                calls.map(|call| call.with(Harm::Kill)).collect()
            }
        }
    }
}

/// Returns calls that create, open, change or request something.
fn calls(trace: &Trace) -> Vec<Call> {
    let anywhere = ANYWHERE.iter().flat_map(|name| trace.calls(name));
    let files = ["openat", "read"].into_iter().flat_map(|name| {
        let places = ["/dev/net/", "/proc/sys/", "/run/"];
        places
            .into_iter()
            .flat_map(move |place| trace.calls_below(name, place))
    });
    let written = trace.calls("write").into_iter();
    let written = written.filter(|call| !call.is_wake());
    anywhere.chain(files).chain(written).collect()
}

fn refusals(trace: &Trace) -> Vec<Fault> {
    let sent = trace.calls("sendto").into_iter();
    let answers = trace.calls("recvfrom").into_iter().filter(Call::is_answer);
    let untrue = answers.zip(ANSWERS.iter().cycle());
    sent.map(|call| call.with(Harm::Refusal))
        .chain(untrue.map(|(call, error)| call.with(Harm::Answer(*error))))
        .collect()
}

/// Returns the errors of a call that occur on a busy host. Callers that repeat interrupted calls do
/// not see EINTR.
fn errors(call: &str) -> &'static [Errno] {
    match call {
        "sendto" => &[Errno::ENOMEM, Errno::EPERM, Errno::EINTR],
        "recvfrom" => &[Errno::ENOMEM, Errno::ENOBUFS, Errno::EINTR],
        "openat" | "write" | "pwrite64" => {
            &[Errno::ENOMEM, Errno::EPERM, Errno::ENOSPC, Errno::EINTR]
        }
        "linkat" | "mkdir" | "mkdirat" | "rename" | "renameat" | "renameat2" => {
            &[Errno::ENOMEM, Errno::EPERM, Errno::ENOSPC]
        }
        "unlink" | "unlinkat" => &[Errno::EPERM, Errno::EBUSY],
        "flock" | "read" | "wait4" => &[Errno::ENOMEM, Errno::EINTR],
        _ => &[Errno::ENOMEM, Errno::EPERM],
    }
}

/// Errors of a kernel that lacks a resource or a permission.
const ANSWERS: [Errno; 4] = [Errno::EBUSY, Errno::ENOSPC, Errno::EPERM, Errno::ENOMEM];

const ANYWHERE: [&str; 32] = [
    "bind",
    "clone",
    "clone3",
    "connect",
    "epoll_create1",
    "eventfd2",
    "execve",
    "fcntl",
    "flock",
    "fstatfs",
    "getdents64",
    "ioctl",
    "linkat",
    "lseek",
    "memfd_create",
    "mkdir",
    "mkdirat",
    "pipe2",
    "pwrite64",
    "recvfrom",
    "rename",
    "renameat",
    "renameat2",
    "sendto",
    "setns",
    "setsockopt",
    "socket",
    "statx",
    "unlink",
    "unlinkat",
    "utimensat",
    "wait4",
];
