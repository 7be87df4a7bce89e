//! Decides whether the date of a file, which is its modification time, shows how old the file is.
//!
//! The kernel takes the date from the wall clock. NTP may set the wall clock forward, for example
//! at boot or after a virtual machine was suspended. Then the lease of a running ADD looks old, and
//! a round of garbage collection would remove it. No program can set the monotonic clock, so the
//! agent compares the wall clock with it. After the wall clock was set, rounds remove no attachment
//! for five minutes, which is longer than an ADD takes.

use std::time::{Duration, Instant, SystemTime};

use nix::sys::sysinfo::sysinfo;

/// Finds out whether the wall clock was set: compares it with the monotonic clock in each round.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    /// The wall clock and the monotonic clock when they were last compared.
    last: (SystemTime, Instant),
    /// When the agent last found that the wall clock was set. Before the first such time: when the
    /// agent started, if the node had booted less than [`SETTLED`] earlier; else `None`.
    since: Option<Instant>,
}

impl Clock {
    /// Starts to compare the wall clock with the monotonic clock. NTP sets the wall clock early
    /// after a boot, so the wall clock of a node that has been up for [`SETTLED`] counts as steady.
    pub fn start() -> Self {
        let now = (SystemTime::now(), Instant::now());
        Self::after(sysinfo().ok().map(|it| it.uptime()), now)
    }

    fn after(uptime: Option<Duration>, now: (SystemTime, Instant)) -> Self {
        let is_settled = uptime.is_none_or(|it| it >= SETTLED);
        Self {
            last: now,
            since: (!is_settled).then_some(now.1),
        }
    }

    /// Compares the clocks. Returns how long the wall clock has to stay steady before the date of a
    /// file shows its age; `None` if dates show ages now.
    pub fn unsteady_for(&mut self) -> Option<Duration> {
        self.compare((SystemTime::now(), Instant::now()))
    }

    fn compare(&mut self, now: (SystemTime, Instant)) -> Option<Duration> {
        let passed = now.1.saturating_duration_since(self.last.1);
        let expected = self.last.0.checked_add(passed);
        let step = expected.map(|it| {
            let forward = now.0.duration_since(it);
            forward.unwrap_or_else(|backward| backward.duration())
        });
        self.last = now;
        // NTP may slew the wall clock by 0.05 %, so 0.1 % of the time since the last comparison is
        // no step.
        let tolerance = TOLERANCE + passed / 1_000;
        if step.is_none_or(|it| it > tolerance) {
            self.since = Some(now.1);
        }
        let steady = now.1.saturating_duration_since(self.since?);
        STEADY.checked_sub(steady).filter(|it| !it.is_zero())
    }
}

/// Time for which the wall clock has to stay steady before dates show ages. It is the longest time
/// of an ADD that `upkeep::Liveness::Young` assumes.
const STEADY: Duration = Duration::from_mins(5);

/// Time after a boot within which NTP should have set the wall clock.
const SETTLED: Duration = Duration::from_mins(10);

/// Largest step of the wall clock that the agent ignores. Such a step does no harm: the kubelet
/// gives up an ADD after four minutes, and the lease of an ADD counts as stale only after five
/// ([`STEADY`]).
const TOLERANCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn clock_that_is_set_is_unsteady_for_five_minutes() {
        let (wall, own) = (SystemTime::now(), Instant::now());
        for shift in [3600, 21] {
            let shift = Duration::from_secs(shift);
            for set in [wall + shift, wall - shift] {
                let mut clock = Clock::after(Some(SETTLED), (wall, own));
                assert_eq!(clock.compare((wall, own)), None);
                let at = |minutes| (set + minutes * MINUTE, own + minutes * MINUTE);
                assert_eq!(clock.compare(at(1)), Some(5 * MINUTE));
                assert_eq!(clock.compare(at(3)), Some(3 * MINUTE));
                assert_eq!(clock.compare(at(6)), None);
            }
        }
    }

    #[test]
    fn slow_changes_are_no_step() {
        let (wall, own) = (SystemTime::now(), Instant::now());
        let mut clock = Clock::after(Some(SETTLED), (wall, own));
        for minute in 1..100 {
            let slewed = wall + minute * (MINUTE + Duration::from_secs(1));
            assert_eq!(clock.compare((slewed, own + minute * MINUTE)), None);
        }
    }

    #[test]
    fn clock_after_a_boot_is_unsteady() {
        let now = (SystemTime::now(), Instant::now());
        let mut clock = Clock::after(Some(MINUTE), now);
        assert_eq!(clock.compare(now), Some(5 * MINUTE));
        let later = (now.0 + 5 * MINUTE, now.1 + 5 * MINUTE);
        assert_eq!(clock.compare(later), None);
    }
}
