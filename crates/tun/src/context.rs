//! Links with an `SELinux` context. The kernel gives a link the context of the process that makes it
//! (`selinux_tun_dev_alloc_security`), and a process gets another one when it starts an executable.
//! So this executable starts itself again.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;

use anyhow::Context as _;

use crate::{Device, Tap, request};

impl Tap {
    /// Makes the link of `device` with this context.
    pub(crate) fn create_as(&self, device: &Device, context: &str) -> anyhow::Result<()> {
        expect_context(context)?;
        let ended = within(context, || {
            let mut command = Command::new("/proc/self/exe");
            command
                .args([MARK, &device.name, &self.multi_queue.to_string()])
                .env_clear()
                .current_dir("/")
                .stdin(device.file.try_clone()?)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
        });
        let words = format!("use SELinux context {context} to create");
        device.accepted(&words, ended.and_then(outcome))
    }
}

/// Returns the error of a process that has made a link, or could not.
fn outcome(status: ExitStatus) -> io::Result<()> {
    match status.code() {
        Some(0) => Ok(()),
        Some(number) => Err(io::Error::from_raw_os_error(number)),
        None => Err(io::Error::other(status.to_string())),
    }
}

/// Checks that the kernel has `SELinux` and accepts the context.
///
/// # Errors
/// It does not.
pub fn expect_context(context: &str) -> anyhow::Result<()> {
    let words = |problem| format!("use SELinux context {context:?}, {problem}");
    // Other security modules have the file of `within`, too.
    let enabled = fs::metadata("/sys/fs/selinux/enforce");
    enabled.with_context(|| words("but the host has no SELinux (/sys/fs/selinux)"))?;
    let accepted = within(context, || Ok(()));
    accepted.with_context(|| words("which the loaded policy does not know or allow"))
}

/// Runs `work` in a thread that starts executables with this context. The thread ends then, so no
/// other executable, such as an IPAM plugin, gets the context.
fn within<T: Send>(context: &str, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || {
            let mut file = OpenOptions::new().write(true).open(ON_EXEC)?;
            file.write_all(context.as_bytes())?;
            work()
        })?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `main`, unless [`Tap::create`] in another process of this executable started this process,
/// with the device file as standard input. Then it makes the link, and returns the error's number.
pub fn run(main: impl FnOnce() -> ExitCode) -> ExitCode {
    let words = env::args_os().skip(1);
    let words: Vec<_> = words
        .map(|it| it.into_string().unwrap_or_default())
        .collect();
    let [mark, name, multi_queue] = words.as_slice() else {
        return main();
    };
    if mark != MARK {
        return main();
    }
    match request::create(io::stdin().as_fd(), name, multi_queue == "true") {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let number = error.raw_os_error().and_then(|it| u8::try_from(it).ok());
            ExitCode::from(number.unwrap_or(u8::MAX))
        }
    }
}

/// The context that the next executable of a thread gets.
const ON_EXEC: &str = "/proc/thread-self/attr/exec";

/// First argument of a process that makes a link.
const MARK: &str = "--make-tap";
