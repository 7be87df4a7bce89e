//! A log that cannot block the agent.
//!
//! A write to standard error blocks if no process reads it, for example if journald hangs. All
//! parts of the agent share one thread, and the plugins that they call inherit standard error. So
//! one blocked write could stop all parts. Therefore the agent replaces standard error by a pipe.
//! One thread always reads the pipe, another one writes the lines to the former standard error, and
//! a queue connects both threads. Lines that do not fit into the queue are counted and dropped.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, PipeReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use nix::unistd::dup2_stderr;
use prometheus_client::metrics::counter::Counter;

/// The pipe that replaces the agent's standard error until [`Log::end`].
#[derive(Debug)]
pub(crate) struct Log {
    former: File,
    /// Counts the lines that were dropped because the queue was full.
    pub dropped: Counter,
    /// The thread that writes the lines closes this channel after the last line.
    ended: Receiver<()>,
}

impl Log {
    /// Replaces standard error by a pipe. Starts the thread that reads the pipe, and the thread
    /// that writes the lines to the former standard error.
    ///
    /// # Errors
    /// The agent has too many open files.
    pub fn start() -> anyhow::Result<Self> {
        let former = io::stderr().as_fd().try_clone_to_owned();
        let former = File::from(former.context("open standard error")?);
        let mut output = former.try_clone().context("open standard error")?;
        let (reader, writer) = io::pipe().context("create a pipe")?;
        dup2_stderr(&writer).context("replace standard error")?;
        let (lines, queue) = sync_channel::<Vec<u8>>(MOST_WAITING);
        let (end, ended) = channel();
        thread::spawn(move || {
            for line in queue {
                // If the write fails, the line is lost, as without the pipe.
                drop(output.write_all(&line));
            }
            drop(end);
        });
        let dropped = Counter::default();
        let counter = dropped.clone();
        thread::spawn(move || pass_on(reader, &lines, &counter));
        Ok(Self {
            former,
            dropped,
            ended,
        })
    }

    /// Restores standard error. Waits up to [`LAST`] until all lines are written.
    pub fn end(self) {
        if dup2_stderr(&self.former).is_ok() {
            // If a plugin still runs, it keeps the pipe open. Then the threads do not end, and the
            // agent waits for the whole time.
            self.ended.recv_timeout(LAST).ok();
        }
    }
}

/// Moves lines from the pipe to the queue until the pipe ends. If the queue is full, drops and
/// counts lines instead of waiting.
fn pass_on(reader: PipeReader, lines: &SyncSender<Vec<u8>>, dropped: &Counter) {
    let mut reader = BufReader::new(reader);
    let mut lost = 0_u64;
    loop {
        let mut line = Vec::new();
        let mut longest = reader.by_ref().take(LONGEST_LINE);
        if longest.read_until(b'\n', &mut line).unwrap_or_default() == 0 {
            return;
        }
        if lost > 0 {
            let count = format!("{lost} lines were dropped: nothing read standard error\n");
            if lines.try_send(count.into_bytes()).is_ok() {
                lost = 0;
            }
        }
        if lost > 0 || lines.try_send(line).is_err() {
            lost = lost.saturating_add(1);
            dropped.inc();
        }
    }
}

/// Maximum number of lines in the queue.
const MOST_WAITING: usize = 1024;

/// Maximum length of a line in bytes. The rest of a longer line counts as another line.
const LONGEST_LINE: u64 = 4096;

/// Maximum time that [`Log::end`] waits until the last line is written.
const LAST: Duration = Duration::from_secs(1);
