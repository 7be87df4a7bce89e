//! The time since boot, and random pauses.

use std::cmp::min;
use std::time::Duration;

use dhcproto::v4::Message;
use rustix::time::{ClockId, clock_gettime};

/// Returns the time since boot, which no change of the clock affects.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    time.try_into().unwrap_or_default()
}

/// Returns the pause with a random deviation of up to a second, or up to half of a short pause: many
/// clients that start together must not ask together (RFC 2131, 4.1).
pub(crate) fn jittered(pause: Duration) -> Duration {
    let most = min(pause / 2, Duration::from_secs(1));
    pause.saturating_sub(most) + most / 500 * (random() % 1000)
}

/// Returns a random number.
pub(crate) fn random() -> u32 {
    Message::default().xid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_deviate_by_a_second_or_by_half() {
        for (pause, [least, most]) in [(10_000, [9_000, 11_000]), (100, [50, 150]), (0, [0, 0])] {
            let pauses = [(); 50].map(|()| jittered(Duration::from_millis(pause)));
            let range = Duration::from_millis(least)..=Duration::from_millis(most);
            assert!(pauses.iter().all(|it| range.contains(it)), "{pauses:?}");
            assert_eq!(pauses.iter().all(|it| *it == pauses[0]), pause == 0);
        }
    }
}
