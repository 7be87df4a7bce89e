//! Token buckets: the parameters of TBF and of an HTB class, and how the kernel reports them.
//!
//! Source: `include/uapi/linux/pkt_sched.h`, `net/sched/sch_tbf.c`, `net/sched/sch_htb.c`.

use std::fmt;

use netlink_packet_core::DefaultNla;

/// Parameters of a token bucket, to be set in the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, derive_more::Display)]
#[display("rate {rate} B/s, burst {burst} bytes, limit {limit} bytes")]
pub struct TokenBucket {
    /// Bytes a second, at least one.
    pub rate: u64,
    /// Bytes that may be sent at once after a pause.
    pub burst: u32,
    /// The kernel gets the burst of a TBF as a time in whole microseconds, rounded down, as
    /// containernetworking/plugins sets it, whose CHECK compares this time. The TBF then holds up to
    /// a microsecond of the rate less.
    pub in_microseconds: bool,
    /// Bytes that may queue; the kernel drops packets beyond that. An HTB class has no such limit.
    pub limit: u32,
    /// Length in bytes of the longest segment (GSO packet) that a TBF does not split. The kernel
    /// splits a longer segment into frames. With `None`, the kernel splits only segments that are
    /// longer than the burst.
    pub piece: Option<u32>,
    /// Length in bytes of the longest packet that may wait in the TBF; 0 if no waiting packet is
    /// longer than `piece`. Packets longer than `piece` may wait after a change to a smaller
    /// `piece`. The value does not change how the kernel sends packets. The kernel only stores it,
    /// so that [`HeldBucket::longest`] can read it.
    pub longest: u32,
}

/// A token bucket as the kernel reports it. Instead of the burst, the kernel reports the time that
/// it takes to send the burst at the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBucket {
    /// Bytes a second.
    pub rate: u64,
    /// Time that the burst takes at the rate, in ticks of 64 ns. The kernel keeps only the lower 32
    /// bits of the number of ticks.
    pub ticks: u32,
    /// Bytes that may queue; 0 for an HTB class.
    pub limit: u32,
    /// The peak rate of a TBF in bytes a second; 0 without one. This crate stores
    /// [`TokenBucket::piece`] and [`TokenBucket::longest`] in the peak rate.
    pub peak: u64,
}

impl TokenBucket {
    /// Returns whether the bucket `held`, which exists in the kernel, has this rate and burst. The
    /// times of the two bursts may differ by a microsecond, because containernetworking/plugins
    /// computes these times in microseconds and rounds down, and by the error of the kernel's
    /// multiplication (`psched_l2t_ns`).
    pub fn is_held_by(&self, held: &HeldBucket) -> bool {
        let distance = self.ticks().wrapping_sub(held.ticks);
        let distance = distance.min(distance.wrapping_neg());
        let inexact = u32::try_from(self.all_ticks() >> 31).unwrap_or(u32::MAX);
        self.rate == held.rate && distance <= TICKS_OF_A_MICROSECOND.saturating_add(inexact)
    }

    /// Returns whether sending the burst takes longer than the kernel can represent: 274 s.
    pub fn overflows(&self) -> bool {
        self.all_ticks() > u128::from(u32::MAX)
    }

    /// Returns whether the TBF `held`, which exists in the kernel, was set with the same
    /// [`Self::piece`]. If `piece` is `None`, returns whether `held` has no peak rate.
    pub fn is_split_like(&self, held: &HeldBucket) -> bool {
        match self.piece {
            None => held.peak == 0,
            piece => held.piece() == piece,
        }
    }

    /// Returns the peak rate of a TBF in bytes a second: `TIMELESS + (longest << 32) + piece`.
    /// Returns 0 if `piece` is `None`. This peak rate limits nothing; it sets and stores `piece`.
    ///
    /// A TBF has a second bucket for its peak rate, and splits segments that are larger than this
    /// bucket. So the size of the second bucket is `piece`. The kernel does not report this size
    /// exactly, so the peak rate also contains `piece`. At a peak rate of [`TIMELESS`] or more, the
    /// kernel computes a time of 0 ns for every packet. So the second bucket delays no packet, not
    /// even a packet that is longer than `piece`.
    fn peak(&self) -> u64 {
        let longest = u64::from(self.longest) << LONGEST_SHIFT;
        self.piece
            .map_or(0, |piece| TIMELESS + longest + u64::from(piece))
    }

    fn ticks(&self) -> u32 {
        u32::try_from(self.all_ticks() & u128::from(u32::MAX)).unwrap_or_default()
    }

    /// Computes the time of the burst in ticks, as the kernel's `psched_l2t_ns()` and
    /// `PSCHED_NS2TICKS()` do.
    fn all_ticks(&self) -> u128 {
        let nanoseconds = u128::from(self.burst) * NANOSECONDS / u128::from(self.rate.max(1));
        nanoseconds >> TICK_SHIFT
    }

    /// Computes the time of the burst in ticks from whole microseconds.
    fn ticks_of_microseconds(&self) -> u32 {
        let microseconds = u128::from(self.burst) * MICROSECONDS / u128::from(self.rate.max(1));
        let ticks = (microseconds * NANOSECONDS / MICROSECONDS) >> TICK_SHIFT;
        u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    /// Returns the attributes of a TBF: `struct tc_tbf_qopt`, and attributes for values that do not
    /// fit into that structure. `TCA_TBF_BURST` is the burst in bytes. With this attribute, the
    /// kernel does not use the ticks of the structure, which overflow for a large burst.
    pub(crate) fn tbf_options(&self) -> Vec<DefaultNla> {
        let ticks = if self.in_microseconds {
            self.ticks_of_microseconds()
        } else {
            self.ticks()
        };
        let mut parameters = rate_specification(self.rate);
        parameters.extend(rate_specification(self.peak()));
        parameters.extend([self.limit, ticks, 0].map(u32::to_ne_bytes).concat());
        let mut options = vec![
            DefaultNla::new(TBF_PARMS, parameters),
            DefaultNla::new(TBF_RATE64, self.rate.to_ne_bytes().into()),
        ];
        if !self.in_microseconds {
            let burst = self.burst.to_ne_bytes();
            options.push(DefaultNla::new(TBF_BURST, burst.into()));
        }
        if let Some(piece) = self.piece {
            let peak = self.peak().to_ne_bytes();
            options.push(DefaultNla::new(TBF_PRATE64, peak.into()));
            options.push(DefaultNla::new(TBF_PBURST, piece.to_ne_bytes().into()));
        }
        options
    }

    /// Returns the attributes of an HTB class: `struct tc_htb_opt`, and attributes for rates that
    /// do not fit into that structure. The ceiling equals the rate, so the class never borrows.
    pub(crate) fn htb_options(&self) -> Vec<DefaultNla> {
        let mut parameters = rate_specification(self.rate).repeat(2);
        let ticks = self.ticks();
        let numbers = [ticks, ticks, HTB_QUANTUM, 0, 0].map(u32::to_ne_bytes);
        parameters.extend(numbers.concat());
        let rate = self.rate.to_ne_bytes();
        vec![
            DefaultNla::new(HTB_PARMS, parameters),
            DefaultNla::new(HTB_RATE64, rate.into()),
            DefaultNla::new(HTB_CEIL64, rate.into()),
        ]
    }
}

impl HeldBucket {
    pub(crate) fn of_tbf(options: &[(u16, Vec<u8>)]) -> Option<Self> {
        let parameter = |at| number(options, TBF_PARMS, at);
        Some(Self {
            rate: long(options, TBF_RATE64).or(parameter(RATE_OFFSET).map(u64::from))?,
            limit: parameter(2 * RATE_SPECIFICATION)?,
            ticks: parameter(2 * RATE_SPECIFICATION + 4)?,
            peak: long(options, TBF_PRATE64)
                .or(parameter(RATE_SPECIFICATION + RATE_OFFSET).map(u64::from))?,
        })
    }

    pub(crate) fn of_htb(options: &[(u16, Vec<u8>)]) -> Option<Self> {
        let parameter = |at| number(options, HTB_PARMS, at);
        Some(Self {
            rate: long(options, HTB_RATE64).or(parameter(RATE_OFFSET).map(u64::from))?,
            limit: 0,
            ticks: parameter(2 * RATE_SPECIFICATION)?,
            peak: 0,
        })
    }

    /// Returns the length in bytes of the longest packet that may wait in this TBF. Without a
    /// `piece`, this is the burst. With a `piece`, it is the larger of [`TokenBucket::piece`] and
    /// [`TokenBucket::longest`]. The TBF split longer segments before they could wait.
    pub fn longest(&self) -> u128 {
        let longest = u128::from(self.lengths() >> LONGEST_SHIFT);
        self.piece()
            .map_or(self.burst(), |piece| longest.max(piece.into()))
    }

    /// Returns the [`TokenBucket::piece`] that the peak rate contains; `None` if there is none.
    fn piece(&self) -> Option<u32> {
        let piece = self.lengths() & u64::from(u32::MAX);
        u32::try_from(piece).ok().filter(|it| *it > 0)
    }

    /// Returns the part of the peak rate above [`TIMELESS`]: [`TokenBucket::piece`] in the lower 32
    /// bits and [`TokenBucket::longest`] in the upper ones. Returns 0 if the TBF has no peak rate,
    /// or a lower one than [`TIMELESS`], which another program set.
    fn lengths(&self) -> u64 {
        self.peak.saturating_sub(TIMELESS)
    }

    /// Returns the burst in bytes, rounded up.
    fn burst(&self) -> u128 {
        let nanoseconds = u128::from(self.ticks) << TICK_SHIFT;
        (nanoseconds * u128::from(self.rate)).div_ceil(NANOSECONDS)
    }
}

impl fmt::Display for HeldBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, limit, .. } = self;
        write!(f, "rate {rate} B/s, burst {} bytes", self.burst())?;
        match limit {
            0 => Ok(()),
            limit => write!(f, ", limit {limit} bytes"),
        }
    }
}

/// Returns `struct tc_ratespec` for `rate` in bytes a second. A `rate` of 0 means no rate. The
/// structure names the link layer Ethernet, so the kernel does not look for a rate table to detect
/// the link layer (`qdisc_get_rtab`).
fn rate_specification(rate: u64) -> Vec<u8> {
    const LINKLAYER_ETHERNET: u8 = 1;
    let mut bytes = vec![0, LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0];
    let rate = u32::try_from(rate).unwrap_or(u32::MAX);
    bytes.extend(rate.to_ne_bytes());
    bytes
}

fn value(options: &[(u16, Vec<u8>)], kind: u16) -> Option<&[u8]> {
    let (_, value) = options.iter().find(|(it, _)| *it == kind)?;
    Some(value)
}

/// Returns the 32-bit number that starts `at` bytes after the start of the value of the option
/// `kind`. Returns `None` if `options` lack this option or its value is too short.
pub(crate) fn number(options: &[(u16, Vec<u8>)], kind: u16, at: usize) -> Option<u32> {
    let bytes = value(options, kind)?.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

fn long(options: &[(u16, Vec<u8>)], kind: u16) -> Option<u64> {
    let bytes = value(options, kind)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

const TBF_PARMS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_PRATE64: u16 = 5;
const TBF_BURST: u16 = 6;
const TBF_PBURST: u16 = 7;

const HTB_PARMS: u16 = 1;
const HTB_RATE64: u16 = 6;
const HTB_CEIL64: u16 = 7;

/// Bytes that an HTB class sends before it is the turn of the next class. There is only one class,
/// so the value has no effect. Without a value, the kernel derives one from the rate and may log a
/// warning.
const HTB_QUANTUM: u32 = 60_000;

/// Size of `struct tc_ratespec`, and the offset of the rate in it.
const RATE_SPECIFICATION: usize = 12;
const RATE_OFFSET: usize = 8;

/// A peak rate in bytes a second, at which the kernel computes a time of 0 ns for every packet
/// (`psched_l2t_ns`). The kernel requires that the peak rate of a TBF exceeds its rate. All rates
/// that this suite sets are lower than this peak rate.
const TIMELESS: u64 = 1_000_000_000_000_000;
/// Position of [`TokenBucket::longest`] in [`TokenBucket::peak`], in bits. The lower bits contain
/// [`TokenBucket::piece`].
const LONGEST_SHIFT: u32 = 32;

const NANOSECONDS: u128 = 1_000_000_000;
const MICROSECONDS: u128 = 1_000_000;
/// A tick is 2^6 ns (`PSCHED_SHIFT` in `include/net/pkt_sched.h`).
const TICK_SHIFT: u32 = 6;
/// A microsecond in ticks, rounded up.
const TICKS_OF_A_MICROSECOND: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(rate: u64, burst: u32) -> TokenBucket {
        TokenBucket {
            rate,
            burst,
            ..TokenBucket::default()
        }
    }

    #[test]
    fn ticks_are_those_that_the_kernel_showed() {
        // After `tc qdisc add dev lo root tbf rate 1mbit burst 6250 limit 9375`, the kernel reports
        // 781,250 ticks of 64 ns: 50 ms.
        assert_eq!(bucket(125_000, 6250).ticks(), 781_250);
        assert_eq!(bucket(1, 274).ticks(), 4_281_250_000);
        assert_eq!(bucket(1, 275).ticks(), 1_907_704);
        // The executable of containernetworking/plugins sets 1,562,500 ticks, 375,000 bytes.
        assert_eq!(
            bucket(3_750_000, 375_000).ticks_of_microseconds(),
            1_562_500
        );
        // It sets 166,666 microseconds for 250,000 bytes at 12 Mbit/s.
        assert_eq!(
            bucket(1_500_000, 250_000).ticks_of_microseconds(),
            2_604_156
        );
    }

    #[test]
    fn long_bursts_are_those_that_the_kernel_computes() {
        // 2^32 bytes at 3 Mbit/s take 11,453 s. The kernel's time is 6 µs shorter.
        let long = bucket(375_000, u32::MAX);
        let held = |difference| HeldBucket {
            rate: long.rate,
            ticks: long.ticks().wrapping_sub(difference),
            limit: 0,
            peak: 0,
        };
        assert!(long.is_held_by(&held(83)) && !long.is_held_by(&held(200)));
    }

    #[test]
    fn longest_packet_follows_from_the_peak_rate_or_the_burst() {
        let held = |peak| HeldBucket {
            rate: 125_000,
            ticks: 781_250,
            limit: 0,
            peak,
        };
        let split = TokenBucket {
            piece: Some(1522),
            ..bucket(125_000, 6250)
        };
        let after = TokenBucket {
            longest: 6000,
            ..split
        };
        for (peak, longest) in [(split.peak(), 1522), (after.peak(), 6000), (0, 6250)] {
            assert_eq!(held(peak).longest(), longest);
        }
        assert!(split.is_split_like(&held(after.peak())));
        assert!(!split.is_split_like(&held(0)));
    }

    #[test]
    fn burst_is_compared_across_the_end_of_the_counter() {
        let wanted = bucket(125_000, 6250);
        let held = |ticks| HeldBucket {
            rate: 125_000,
            ticks,
            limit: 0,
            peak: 0,
        };
        assert!(wanted.is_held_by(&held(781_250)) && wanted.is_held_by(&held(781_234)));
        assert!(!wanted.is_held_by(&held(781_233)) && !wanted.is_held_by(&held(0)));
        let none = bucket(u64::MAX, 0);
        let held = HeldBucket {
            rate: u64::MAX,
            ticks: u32::MAX,
            limit: 0,
            peak: 0,
        };
        assert!(none.is_held_by(&held));
    }
}
