//! Remembers since when attachments look unused, although they have links.
//!
//! A pod whose sandbox is being made looks like this for a while: its ADD runs, it has no process
//! yet, and its runtime may list it only later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use upkeep::Leftover;

/// Idle attachments by tag and links: since when, and in how many successive rounds up to now.
#[derive(Debug, Default)]
pub(super) struct Waits(BTreeMap<(String, Vec<u32>), (Instant, u32)>);

impl Waits {
    /// Takes the leftovers that a round found at `now`, and forgets all others. Returns the tags of
    /// those that have been idle in [`ROUNDS`] successive rounds over at least [`PERIOD`].
    pub fn pass(&mut self, found: &[Leftover], now: Instant) -> BTreeSet<String> {
        let idle = found.iter().filter(|it| it.is_idle);
        let keys = idle.map(|it| (it.attachment.owner(), it.links.clone()));
        let counted = keys.map(|key| {
            let (since, rounds) = self.0.get(&key).copied().unwrap_or((now, 0));
            (key, (since, rounds + 1))
        });
        self.0 = counted.collect();
        let is_due = |(since, rounds): (Instant, u32)| {
            rounds >= ROUNDS && now.saturating_duration_since(since) >= PERIOD
        };
        let due = self.0.iter().filter(|(_, it)| is_due(**it));
        due.map(|((owner, _), _)| owner.clone()).collect()
    }
}

/// Time for which an attachment has to look unused before a round removes it: more than twice as
/// long as the kubelet lets an ADD run.
pub(super) const PERIOD: Duration = Duration::from_mins(10);

/// Number of rounds in which an attachment has to look unused before a round removes it.
const ROUNDS: u32 = 3;

#[cfg(test)]
mod tests {
    use cni::Attachment;

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    fn leftover(links: &[u32], is_idle: bool) -> Leftover {
        Leftover {
            attachment: Attachment::of_owner("cni:pods/a/eth0").unwrap(),
            link: "veth0".to_owned(),
            links: links.to_vec(),
            is_idle,
        }
    }

    /// Returns the minutes at which the leftover is due, if each of `rounds` is a minute and what
    /// the round at that minute finds.
    fn due(rounds: &[(u32, &[Leftover])]) -> Vec<u32> {
        let (mut waits, start) = (Waits::default(), Instant::now());
        let due = rounds
            .iter()
            .filter(|(minute, found)| !waits.pass(found, start + *minute * MINUTE).is_empty());
        due.map(|it| it.0).collect()
    }

    #[test]
    fn three_rounds_over_ten_minutes_have_to_find_the_same() {
        let found = &[leftover(&[7], true)][..];
        assert_eq!(due(&[(0, found), (5, found), (10, found)]), [10]);
        assert_eq!(due(&[(0, found), (60, found), (61, found)]), [61]);
        let rounds: Vec<_> = (0..12).map(|it| (it, found)).collect();
        assert_eq!(due(&rounds), [10, 11]);
    }

    #[test]
    fn a_process_a_listing_or_another_link_begins_the_time_again() {
        let found = &[leftover(&[7], true)][..];
        for other in [&[][..], &[leftover(&[8], true)], &[leftover(&[7], false)]] {
            let rounds = [(0, found), (5, found), (9, other), (10, found), (15, found)];
            assert!(due(&rounds).is_empty(), "{other:?}");
            let later: Vec<_> = rounds.into_iter().chain([(20, found)]).collect();
            assert_eq!(due(&later), [20], "{other:?}");
        }
    }
}
