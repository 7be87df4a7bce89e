//! Ends the agent within a second after SIGTERM or SIGINT, even if a part of the agent hangs.
//!
//! The main thread only waits for signals. The parts run in an event loop on another thread. If
//! that thread does not end in time, it ends with the process.
//!
//! The end takes longer if a thread waits in the kernel for a lock, such as the RTNL lock of links:
//! the process ends only after that thread has got the lock.

use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use cni::note;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Gets a message when the agent has to end.
pub(crate) type End = oneshot::Receiver<()>;

/// Returns an event loop. One thread serves all sockets. Work that blocks runs on threads of its
/// own.
pub(crate) fn event_loop() -> anyhow::Result<Runtime> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("start the event loop")
}

/// Runs `work` on a thread of its own, and returns when `work` ends. After SIGTERM or SIGINT, sends
/// a message to `work`, and returns after [`LONGEST_END`] even if `work` still runs.
///
/// # Errors
/// `work` fails or panics, or the signals cannot be received.
pub(crate) fn until_signal(
    work: impl FnOnce(End) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    event_loop()?.block_on(async {
        let mut terminations = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupts = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let (ask, asked) = oneshot::channel();
        let (ended, mut outcome) = oneshot::channel();
        let thread = thread::Builder::new().name(THREAD.to_owned());
        let started = thread.spawn(move || ended.send(work(asked)));
        started.context("start the thread of the parts")?;
        tokio::select! {
            outcome = &mut outcome => return outcome.context("the agent panicked")?,
            _ = terminations.recv() => {}
            _ = interrupts.recv() => {}
        }
        // Sending fails if `work` has just ended.
        ask.send(()).ok();
        if let Ok(outcome) = timeout(LONGEST_END, outcome).await {
            return outcome.context("the agent panicked")?;
        }
        note("cni-agent: ended while a part was still busy");
        Ok(())
    })
}

/// Time limit for the agent's parts to end after a signal. They usually need some milliseconds.
const LONGEST_END: Duration = Duration::from_millis(600);

/// Name of the thread that runs the agent's parts, as `ps -L` shows it.
const THREAD: &str = "parts";
