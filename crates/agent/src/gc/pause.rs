//! The time between two rounds.

use std::path::PathBuf;
use std::time::Duration;

use inotify::WatchMask;
use tokio::signal::unix::Signal;
use tokio::time::sleep;

use crate::watch::Watch;

/// The time until the next round: the interval, or less, for example after a failed round.
#[derive(Debug)]
pub(super) struct Pause {
    interval: Duration,
    time: Duration,
    is_failing: bool,
}

impl Pause {
    /// Returns the pause before the first round. At a boot, the runtimes start at the same moment
    /// as the agent, so the pause lets them start first.
    pub fn before_first(interval: Duration) -> Self {
        Self {
            interval,
            time: START,
            is_failing: false,
        }
    }

    /// Waits until the pause is over or SIGHUP arrives. After a failed round, also returns when one
    /// of `sockets` appears.
    pub async fn wait(&mut self, hangups: &mut Signal, sockets: &[PathBuf]) {
        tokio::select! {
            () = sleep(self.time) => {}
            _ = hangups.recv() => {}
            () = appears(sockets), if self.is_failing => self.time = Duration::ZERO,
        }
    }

    /// Sets the pause after a round that judged the attachments: the interval, or `again` if that
    /// is shorter. `again` is the time until the wall clock has been steady for so long that the
    /// dates of files show their ages; `None` if they show them now.
    pub fn succeeded(&mut self, again: Option<Duration>) {
        self.is_failing = false;
        self.time = again.map_or(self.interval, |it| it.min(self.interval));
    }

    /// Sets the pause after a round that removed nothing because of an error. The pause doubles
    /// with each such round, up to the shorter one of [`LONGEST_RETRY`] and the interval.
    pub fn failed(&mut self) {
        let longest = LONGEST_RETRY.min(self.interval);
        self.time = if self.is_failing {
            (self.time * 2).clamp(SHORTEST_RETRY, longest)
        } else {
            SHORTEST_RETRY
        };
        self.is_failing = true;
    }
}

/// Waits until a file appears at one of `paths`. Also returns when one of the missing parent
/// directories appears. Never returns if the kernel refuses to watch the directories.
async fn appears(paths: &[PathBuf]) {
    let paths = paths.iter().map(PathBuf::as_path);
    let appearances = WatchMask::CREATE | WatchMask::MOVED_TO;
    let appeared = async { Watch::start(paths, appearances)?.changed().await };
    if appeared.await.is_err() {
        std::future::pending::<()>().await;
    }
    // Waits, because a process creates the file of a socket a moment before it listens there.
    sleep(SETTLES).await;
}

/// Time from the creation of a socket until its owner should listen. It is also the shortest time
/// between two returns of [`appears`].
const SETTLES: Duration = Duration::from_millis(100);

/// Time from the start of the agent to the first round.
const START: Duration = Duration::from_secs(5);

/// The shortest time from a failed round to the next one.
const SHORTEST_RETRY: Duration = Duration::from_millis(100);

/// The longest time from a failed round to the next one, if the interval is not shorter.
const LONGEST_RETRY: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_become_rarer_until_a_round_succeeds() {
        let mut pause = Pause::before_first(Duration::from_secs(30));
        let times = std::iter::repeat_with(|| {
            pause.failed();
            pause.time
        });
        let times: Vec<_> = times.take(12).collect();
        assert_eq!(times[..3], [1, 2, 4].map(|it| SHORTEST_RETRY * it));
        assert_eq!(times[11], Duration::from_secs(30));
        pause.succeeded(None);
        pause.failed();
        assert_eq!(pause.time, SHORTEST_RETRY);
    }
}
