//! Pauses after failures, so that the agent tries again soon, but not all the time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The pauses between attempts: the first one is [`SHORTEST`], and each further one is twice as
/// long, up to [`LONGEST`]. After an attempt that took longer than [`LONGEST`], they start again.
pub(crate) struct Pauses {
    next: Duration,
    attempt: Instant,
    /// The number of pauses that are [`SHORTEST`] before they become longer.
    short: usize,
    /// How many of these are left.
    left: usize,
}

impl Pauses {
    /// Returns the pauses after an attempt that starts now.
    pub fn new() -> Self {
        Self::with_short(0)
    }

    /// The same, with this number of short pauses before they become longer.
    pub fn with_short(short: usize) -> Self {
        Self {
            next: SHORTEST,
            attempt: Instant::now(),
            short,
            left: short,
        }
    }

    /// Waits until the next attempt should start.
    pub async fn wait(&mut self) {
        if self.attempt.elapsed() > LONGEST {
            *self = Self::with_short(self.short);
        }
        sleep(self.next).await;
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.next = (2 * self.next).min(LONGEST),
        }
        self.attempt = Instant::now();
    }
}

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
