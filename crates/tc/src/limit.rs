//! Rates, bursts and their token buckets.

use std::time::Duration;

use netlink::TokenBucket;

/// A rate: 8 bit/s to 1 Pbit/s.
///
/// The kernel counts whole bytes per second. Above the upper bound its arithmetic is wrong by more
/// than rounding (`psched_ratecfg_precompute()` in `net/sched/sch_generic.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitsPerSecond(u64);

/// Amount of data that may be sent at once after a pause: up to 4 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Burst {
    bytes: u32,
    /// Minimum length of the queue in bytes, including the burst.
    queue: u32,
}

/// A rate with its burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Average rate.
    pub rate: BitsPerSecond,
    /// Amount of data that may be sent at once.
    pub burst: Burst,
}

/// The error for a rate or a burst that the kernel cannot represent, or that would stop all
/// traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{value} is not within {least} to {most} {unit}")]
pub struct OutOfRange {
    value: u64,
    least: u64,
    most: u64,
    unit: &'static str,
}

impl BitsPerSecond {
    /// The highest rate.
    pub const MAX: Self = Self(1_000_000_000_000_000);

    /// Returns how many bytes may queue in addition to the burst.
    pub(crate) fn waiting(self) -> u32 {
        saturating(bytes_in(LATENCY, self))
    }

    /// Returns the rate in bytes per second.
    pub fn bytes(self) -> u64 {
        self.0 / BITS
    }
}

impl TryFrom<u64> for BitsPerSecond {
    type Error = OutOfRange;

    fn try_from(value: u64) -> Result<Self, OutOfRange> {
        within(value, [BITS, Self::MAX.0], "bit/s").map(Self)
    }
}

impl Burst {
    /// Returns the burst in bytes.
    pub fn bytes(self) -> u32 {
        self.bytes
    }

    /// Creates a configured burst for a link with an MTU of `mtu` bytes. The burst has to be at
    /// least as large as one frame, since TBF never sends a frame that exceeds the burst.
    ///
    /// # Errors
    /// [`OutOfRange`] with the bounds: the burst is smaller than a frame or larger than 4 GiB.
    pub fn from_bits(bits: u64, mtu: u32) -> Result<Self, OutOfRange> {
        let least = u64::from(mtu.saturating_add(ETHERNET_HEADER)) * BITS;
        let most = u64::from(u32::MAX) * BITS;
        let bytes = within(bits, [least, most], "bits")? / BITS;
        Ok(Self {
            bytes: saturating(bytes.into()),
            queue: 0,
        })
    }

    /// Derives a burst from the rate, for a configuration without a burst. The burst is small
    /// enough that even the first second hardly exceeds the rate, and large enough that TCP reaches
    /// the rate.
    ///
    /// Measured at 1 Mbit/s and an MTU of 1500: with a burst of 50 ms (6,250 bytes), every second
    /// has 94 to 104 % of the rate. A burst of 64 KiB let 146 % pass in the first second; a burst
    /// of 3,000 bytes cost TCP a third of the rate. The qdisc splits large segments into frames, so
    /// the burst may be smaller than a segment.
    ///
    /// The queue is long enough for TCP's initial window (RFC 6928). A queue of 9,375 bytes (25 ms
    /// plus the burst) dropped so many packets of this window that the first second had only 76 to
    /// 81 % of the rate.
    pub fn derived(rate: BitsPerSecond, mtu: u32) -> Self {
        let least = mtu.saturating_mul(LEAST_MTUS);
        let bytes = saturating(bytes_in(DERIVED, rate)).max(least);
        let frame = mtu.saturating_add(ETHERNET_HEADER);
        let queue = frame.saturating_mul(INITIAL_WINDOW);
        Self { bytes, queue }
    }
}

impl Limit {
    /// Returns the parameters for the kernel. After the burst, the kernel drops packets that would
    /// queue longer than [`LATENCY`], unless [`Burst::derived`] asks for a longer queue.
    pub(crate) fn bucket(&self) -> TokenBucket {
        let Burst { bytes, queue } = self.burst;
        TokenBucket {
            rate: self.rate.bytes(),
            burst: bytes,
            limit: self.rate.waiting().saturating_add(bytes).max(queue),
        }
    }
}

/// Returns how many bytes the rate lets pass in a time.
fn bytes_in(time: Duration, rate: BitsPerSecond) -> u128 {
    u128::from(rate.bytes()) * time.as_micros() / 1_000_000
}

fn within(value: u64, [least, most]: [u64; 2], unit: &'static str) -> Result<u64, OutOfRange> {
    let is_within = (least..=most).contains(&value);
    is_within.then_some(value).ok_or(OutOfRange {
        value,
        least,
        most,
        unit,
    })
}

fn saturating(bytes: u128) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

const BITS: u64 = 8;
const DERIVED: Duration = Duration::from_millis(50);
const LEAST_MTUS: u32 = 4;
/// TCP's initial window in segments (RFC 6928).
const INITIAL_WINDOW: u32 = 10;
/// Longest time in the queue, as in the reference.
const LATENCY: Duration = Duration::from_millis(25);
/// Size in bytes of the Ethernet header (`ETH_HLEN`), which the kernel counts as a part of a sent
/// packet.
const ETHERNET_HEADER: u32 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(bits: u64) -> BitsPerSecond {
        bits.try_into().unwrap()
    }

    #[test]
    fn burst_is_derived_from_rate_and_mtu() {
        let derived = |bits, mtu| Burst::derived(rate(bits), mtu).bytes;
        assert_eq!(derived(1_000_000, 1500), 6250);
        assert_eq!(derived(10_000_000, 1500), 62_500);
        assert_eq!(derived(8, 1500), 6000);
        assert_eq!(derived(1_000_000, 9000), 36_000);
        assert_eq!(derived(BitsPerSecond::MAX.0, 1500), u32::MAX);
    }

    #[test]
    fn bucket_holds_the_burst_and_what_waits_25_milliseconds_or_ten_frames() {
        let limit = |bits| {
            let rate = rate(bits);
            let burst = Burst::derived(rate, 1500);
            Limit { rate, burst }.bucket()
        };
        let bucket = |rate, burst, limit| TokenBucket { rate, burst, limit };
        assert_eq!(limit(1_000_000), bucket(125_000, 6250, 15_140));
        assert_eq!(limit(10_000_000), bucket(1_250_000, 62_500, 93_750));
        assert_eq!(limit(BitsPerSecond::MAX.0).limit, u32::MAX);
    }

    #[test]
    fn what_cannot_be_held_is_refused_with_its_bounds() {
        for bits in [0, 7, BitsPerSecond::MAX.0 + 1] {
            let error = BitsPerSecond::try_from(bits).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("{bits} is not within 8 to 1000000000000000 bit/s")
            );
        }
        let most = u64::from(u32::MAX) * 8;
        for bits in [0, 12_111, most + 8] {
            let error = Burst::from_bits(bits, 1500).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("{bits} is not within 12112 to 34359738360 bits")
            );
        }
        assert_eq!(Burst::from_bits(12_112, 1500).unwrap().bytes, 1514);
        assert_eq!(Burst::from_bits(most, 1500).unwrap().bytes, u32::MAX);
    }
}
