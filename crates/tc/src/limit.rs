//! Rates, bursts and their token buckets.

use std::time::Duration;

use netlink::{FairQueue, TokenBucket};

/// A rate: 8 bit/s to 1 Pbit/s.
///
/// The kernel counts whole bytes per second. At rates above the upper bound, the kernel's
/// computation of times is wrong by more than rounding (`psched_ratecfg_precompute()` in
/// `net/sched/sch_generic.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitsPerSecond(u64);

/// Amount of data that may be sent at once after a pause: up to 4 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Burst {
    bytes: u32,
    /// Length of the link's largest frame in bytes, with the Ethernet header.
    frame: u32,
    /// [`Self::derived`] computed the burst, because none is configured.
    is_derived: bool,
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

    /// Returns the number of bytes that pass at this rate in 25 ms. The Go plugin `bandwidth` sets
    /// a queue of this length plus the burst.
    pub(crate) fn waiting(self) -> u32 {
        self.bytes_in(LATENCY)
    }

    /// Returns the number of bytes that the rate passes in `time`.
    fn bytes_in(self, time: Duration) -> u32 {
        saturating(u128::from(self.bytes()) * time.as_micros() / MICROSECONDS)
    }

    /// Returns the time in microseconds that `bytes` take at the rate.
    fn time_of(self, bytes: u32) -> u32 {
        saturating(u128::from(bytes) * MICROSECONDS / u128::from(self.bytes()))
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
    /// least as large as one frame, because a TBF never sends a frame that exceeds the burst.
    ///
    /// # Errors
    /// [`OutOfRange`] with the bounds: the burst is smaller than a frame or larger than 4 GiB.
    pub fn from_bits(bits: u64, mtu: u32) -> Result<Self, OutOfRange> {
        let frame = mtu.saturating_add(ETHERNET_HEADER);
        let least = u64::from(frame) * BITS;
        let most = u64::from(u32::MAX) * BITS;
        let bytes = within(bits, [least, most], "bits")? / BITS;
        Ok(Self {
            bytes: saturating(bytes.into()),
            frame,
            is_derived: false,
        })
    }

    /// Derives a burst from the rate, for a configuration without a burst: what passes in 50 ms,
    /// but at least four MTUs. This burst is small enough that even the first second hardly exceeds
    /// the rate, and large enough that TCP reaches the rate.
    ///
    /// Measured at 1 Mbit/s and an MTU of 1500: with a burst of 50 ms (6,250 bytes), every second
    /// has 94 to 104 % of the rate. With a burst of 64 KiB, 146 % passed in the first second. With
    /// a burst of 3,000 bytes, TCP reached only two thirds of the rate. The burst adds nothing to
    /// the latency, because the qdisc splits segments that take longer than 2 ms.
    pub fn derived(rate: BitsPerSecond, mtu: u32) -> Self {
        let least = mtu.saturating_mul(LEAST_MTUS);
        Self {
            bytes: rate.bytes_in(DERIVED).max(least),
            frame: mtu.saturating_add(ETHERNET_HEADER),
            is_derived: true,
        }
    }
}

impl Limit {
    /// Returns the token bucket of this limit, with a queue of `queue` bytes.
    pub(crate) fn bucket(&self, queue: u32) -> TokenBucket {
        TokenBucket {
            rate: self.rate.bytes(),
            burst: self.burst.bytes,
            in_microseconds: !self.burst.is_derived && self.holds_frame_in_microseconds(),
            limit: queue,
            piece: self.piece(),
            longest: 0,
        }
    }

    /// Returns whether the burst, rounded down to whole microseconds, still holds a frame, and
    /// whether the kernel can represent its time.
    fn holds_frame_in_microseconds(&self) -> bool {
        let time = self.rate.time_of(self.burst.bytes);
        let held = self.rate.bytes_in(Duration::from_micros(time.into()));
        held >= self.burst.frame.saturating_add(VLAN_TAGS) && time < LONGEST_BURST
    }

    /// Returns the length in bytes above which the TBF splits a segment into frames: the bytes that
    /// pass in 2 ms, but at least one frame. Returns `None` if the burst or the kernel's largest
    /// segment is not longer than this length, because the length would then change nothing.
    ///
    /// Packets of other flows wait while the TBF sends an unsplit segment. Without this length, a
    /// segment could be as long as the burst. A burst of [`Burst::derived`] takes 50 ms or longer.
    pub(crate) fn piece(&self) -> Option<u32> {
        let Burst { bytes, frame, .. } = self.burst;
        let piece = self.rate.bytes_in(PIECE);
        let piece = piece.max(frame.saturating_add(VLAN_TAGS));
        (piece < bytes.min(LARGEST_SEGMENT)).then_some(piece)
    }

    /// Returns the parameters of the `fq_codel` in which packets wait for the token bucket. `CoDel`
    /// needs a target that is longer than the time of a frame, and an interval that exceeds the
    /// target by a round trip. At low rates, a flow may send less than a frame in its turn. If it
    /// could send a whole frame, a short packet would wait for a frame of each bulk flow.
    pub(crate) fn fair_queue(&self) -> FairQueue {
        let frame = self.burst.frame;
        let target = self.rate.time_of(frame.saturating_add(frame / 2));
        let target = target.clamp(LEAST_TARGET, MOST_TARGET);
        let limit = self.waiting_frames();
        // The fair queue gets memory for at least 64 frames, even if fewer may wait: a driver may
        // use a page of 64 KiB for one frame, which can exceed the memory for five frames.
        let frames = limit.max(FEW_FRAMES);
        let memory = frames.saturating_mul(frame.saturating_mul(MEMORY_OF_BYTE));
        FairQueue {
            target,
            interval: target.saturating_add(ROUND_TRIP),
            limit,
            quantum: self.rate.bytes_in(TURN).min(frame).max(LEAST_TURN),
            memory: memory.min(MOST_MEMORY),
        }
    }

    /// Returns how many packets may wait in the fair queue: as many frames as pass in 250 ms, at
    /// most 10,240. If that is less than 64, returns as many frames as pass in 500 ms, but at least
    /// 5 and at most 64.
    ///
    /// 500 ms are half of TCP's first timeout. After a timeout, TCP sends packets again, although
    /// their first copies may still wait. Linux then also gives the connection another flow hash
    /// (`sk_rethink_txhash`), so its packets enter another queue. When 64 packets could wait at 64
    /// kbit/s, four connections soon had 22 queues, full of packets that were sent twice.
    ///
    /// Packets are rarely as long as a jumbo frame. So the numbers from 5 to 64 are computed with a
    /// frame of at most 1514 bytes.
    fn waiting_frames(&self) -> u32 {
        let frame = self.burst.frame.max(1);
        let few = self.rate.bytes_in(HALF_TIMEOUT) / frame.min(ETHERNET_FRAME);
        let few = few.clamp(LEAST_FRAMES, FEW_FRAMES);
        let frames = self.rate.bytes_in(MOST_WAITING) / frame;
        frames.clamp(few, MOST_FRAMES)
    }

    /// Returns the length in bytes of the TBF's own queue, which has an effect only on a kernel
    /// without `fq_codel`. With a derived burst, this is what passes in 25 ms, but at least TCP's
    /// initial window (RFC 6928). With a shorter queue, only 76 to 81 % of a rate of 1 Mbit/s
    /// passed in the first second. With a configured burst, this is the length that the Go plugin
    /// `bandwidth` sets, because CHECK of the Go plugin compares the length.
    pub(crate) fn plain_queue(&self) -> u32 {
        let waiting = self.rate.waiting();
        if !self.burst.is_derived {
            return waiting.saturating_add(self.burst.bytes);
        }
        waiting.max(self.burst.frame.saturating_mul(INITIAL_WINDOW))
    }
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

/// Longest burst in microseconds whose ticks of 64 ns fit into 32 bits.
const LONGEST_BURST: u32 = u32::MAX / 16;
const BITS: u64 = 8;
const DERIVED: Duration = Duration::from_millis(50);
const LEAST_MTUS: u32 = 4;
/// TCP's initial window in segments (RFC 6928).
const INITIAL_WINDOW: u32 = 10;
/// Longest time that a packet waits in the queue that the Go plugin `bandwidth` sets.
const LATENCY: Duration = Duration::from_millis(25);
/// Time that the longest unsplit segment takes at the rate. A single frame may take longer.
const PIECE: Duration = Duration::from_millis(2);
/// Size in bytes of two VLAN tags, which a frame may have in addition to the MTU.
const VLAN_TAGS: u32 = 8;
/// Size in bytes of the largest segment that the kernel passes to a link (`GSO_MAX_SIZE`).
pub(crate) const LARGEST_SEGMENT: u32 = 8 * 65_535;
/// Shortest target of the fair queue in microseconds: the kernel's default.
const LEAST_TARGET: u32 = 5000;
/// Longest target of the fair queue in microseconds. It is far below 36 minutes, the longest time
/// that `CoDel` can compare (32 bits with sign, in units of 1,024 ns).
const MOST_TARGET: u32 = 2_000_000;
/// Round trip in microseconds: the difference between the interval and the target of `fq_codel`.
/// The kernel's defaults of 100 ms and 5 ms have the same difference.
const ROUND_TRIP: u32 = 95_000;
/// Longest time that frames may wait if their flow does not react to drops. The fair queue's limit
/// is the number of frames that pass in this time, within the bounds of [`Limit::waiting_frames`].
/// A segment counts as one packet, so [`FairQueue::memory`] limits the length of waiting segments.
const MOST_WAITING: Duration = Duration::from_millis(250);
/// Half of TCP's initial retransmission timeout (RFC 6298).
const HALF_TIMEOUT: Duration = Duration::from_millis(500);
/// Smallest limit of the fair queue in packets.
const LEAST_FRAMES: u32 = 5;
/// Number of packets that the fair queue may hold even if they wait longer than [`MOST_WAITING`]: a
/// few initial windows of TCP.
const FEW_FRAMES: u32 = 64;
/// Length in bytes of the longest frame of a link with an MTU of 1500.
const ETHERNET_FRAME: u32 = 1514;
/// Largest limit of the fair queue in packets: the kernel's default.
const MOST_FRAMES: u32 = 10_240;
/// Time that a flow's turn in the fair queue takes at the rate.
const TURN: Duration = Duration::from_millis(2);
/// Minimum number of bytes that a flow sends in its turn. Most packets that belong to no bulk
/// transfer are shorter. The kernel raises a smaller number than 256 to 256.
const LEAST_TURN: u32 = 300;
/// Bytes of kernel memory for each byte of a waiting frame: a driver may use a whole page for a
/// short frame.
const MEMORY_OF_BYTE: u32 = 4;
/// Largest memory of the fair queue in bytes: the kernel's default.
const MOST_MEMORY: u32 = 32 << 20;
const MICROSECONDS: u128 = 1_000_000;
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

    fn limit(bits: u64, mtu: u32) -> Limit {
        let rate = rate(bits);
        let burst = Burst::derived(rate, mtu);
        Limit { rate, burst }
    }

    #[test]
    fn segments_are_split_that_take_longer_than_2_milliseconds() {
        let piece = |bits, mtu| limit(bits, mtu).piece();
        assert_eq!(piece(64_000, 1500), Some(1522));
        assert_eq!(piece(10_000_000, 1500), Some(2500));
        assert_eq!(piece(100_000_000, 1500), Some(25_000));
        assert_eq!(piece(10_000_000, 65_535), Some(65_557));
        assert_eq!(piece(1_000_000_000, 1500), Some(250_000));
        assert_eq!(piece(40_000_000_000, 1500), None);
        let rate = rate(10_000_000);
        let burst = Burst::from_bits(12_112, 1500).unwrap();
        assert_eq!(Limit { rate, burst }.piece(), None);
    }

    #[test]
    fn target_is_5_milliseconds_or_longer_than_a_frame_takes() {
        let queue = |bits, mtu| limit(bits, mtu).fair_queue();
        let times = |bits, mtu| [queue(bits, mtu).target, queue(bits, mtu).interval];
        assert_eq!(times(64_000, 1500), [283_875, 378_875]);
        assert_eq!(times(1_000_000, 1500), [18_168, 113_168]);
        assert_eq!(times(10_000_000, 1500), [5000, 100_000]);
        assert_eq!(times(10_000_000, 9000), [10_816, 105_816]);
        assert_eq!(times(40_000_000_000, 1500), [5000, 100_000]);
        assert_eq!(queue(8, 65_535).target, 2_000_000);
    }

    #[test]
    fn queue_is_short_at_low_rates() {
        let queue = |bits, mtu| {
            let queue = limit(bits, mtu).fair_queue();
            (queue.limit, queue.memory)
        };
        assert_eq!(queue(8, 1500), (5, 4 * 64 * 1514));
        assert_eq!(queue(64_000, 1500), (5, 4 * 64 * 1514));
        assert_eq!(queue(64_000, 9000), (5, 4 * 64 * 9014));
        assert_eq!(queue(256_000, 1280), (12, 4 * 64 * 1294));
        assert_eq!(queue(256_000, 1500), (10, 4 * 64 * 1514));
        assert_eq!(queue(1_000_000, 1500), (41, 4 * 64 * 1514));
        assert_eq!(queue(2_000_000, 1500), (64, 4 * 64 * 1514));
        assert_eq!(queue(10_000_000, 1500), (206, 4 * 206 * 1514));
        assert_eq!(queue(10_000_000, 9000), (64, 4 * 64 * 9014));
        assert_eq!(queue(40_000_000_000, 1500), (10_240, 32 << 20));
    }

    #[test]
    fn turn_takes_2_milliseconds_within_300_bytes_and_a_frame() {
        let turn = |bits, mtu| limit(bits, mtu).fair_queue().quantum;
        assert_eq!(turn(64_000, 1500), 300);
        assert_eq!(turn(1_000_000, 1500), 300);
        assert_eq!(turn(3_000_000, 1500), 750);
        assert_eq!(turn(10_000_000, 1500), 1514);
        assert_eq!(turn(10_000_000, 9000), 2500);
        assert_eq!(turn(10_000_000, 68), 300);
    }

    #[test]
    fn plain_queue_is_25_milliseconds_or_ten_frames() {
        assert_eq!(limit(1_000_000, 1500).plain_queue(), 15_140);
        assert_eq!(limit(10_000_000, 1500).plain_queue(), 31_250);
        assert_eq!(limit(BitsPerSecond::MAX.0, 1500).plain_queue(), u32::MAX);
        let rate = rate(10_000_000);
        let burst = Burst::from_bits(400_000, 1500).unwrap();
        assert_eq!(Limit { rate, burst }.plain_queue(), 31_250 + 50_000);
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
