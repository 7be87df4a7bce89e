//! The rate limit of an element in a set. All packets with the element's key share the limit. See
//! `struct nft_limit_priv` in `net/netfilter/nft_limit.c`.

use serde::{Deserialize, Serialize};

use crate::attributes::{Attributes, number, text, value};
use crate::expression::{DATA, Expression, NAME};

/// A token bucket that fills continuously with `rate` bytes per second. A full bucket contains
/// `burst` bytes plus the bytes of one second, because the kernel adds the bytes of one time unit
/// to the burst, and its shortest unit is a second. So even with a burst of 0, the bytes of one
/// second may pass at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limit {
    /// Bytes per second.
    rate: u64,
    /// Bytes that may pass at once, in addition to those of one second.
    burst: u32,
}

impl Limit {
    /// Creates a bucket that fills with `rate` bytes per second. Returns `None` if `rate` is 0, or
    /// if `rate` plus `burst` is more than 18 GB, because the kernel multiplies this sum by 10⁹ in
    /// 64 bits.
    pub fn new(rate: u64, burst: u32) -> Option<Self> {
        let in_a_second = rate.checked_add(burst.into())?;
        in_a_second.checked_mul(NANOSECONDS)?;
        (rate > 0).then_some(Self { rate, burst })
    }

    /// The default limit of each set whose elements have limits. nft(8) rejects an element with a
    /// limit if its set has no default. The default has no effect, because each element has its own
    /// limit.
    pub(crate) const OF_SETS: Self = Self { rate: 1, burst: 0 };

    /// Returns the expression `limit rate over …`. For packets above the limit, the kernel
    /// continues with the rule. For all other packets, it skips the rest of the rule.
    pub(crate) fn expression(self) -> Attributes {
        let data = Attributes::new()
            .bytes(RATE, &self.rate.to_be_bytes())
            .bytes(UNIT, &SECOND.to_be_bytes())
            .number(BURST, self.burst)
            .number(KIND, BYTES)
            .number(FLAGS, OVER);
        Expression::new(LIMIT, data).encode()
    }

    /// Returns whether an expression that the kernel reported is a limit.
    pub(crate) fn is_expression(expression: &[u8]) -> bool {
        value(expression, NAME).is_some_and(|it| text(it) == LIMIT)
    }

    /// Reads a limit from an expression that [`Self::expression`] encoded. Returns `None` for any
    /// other expression.
    pub(crate) fn read(expression: &[u8]) -> Option<Self> {
        let data = value(expression, DATA)?;
        let kinds = [UNIT, KIND, FLAGS].map(|kind| number(value(data, kind)));
        let is_ours = kinds == [SECOND, BYTES.into(), OVER.into()];
        let rate = u64::from_be_bytes(*value(data, RATE)?.first_chunk()?);
        let burst = u32::from_be_bytes(*value(data, BURST)?.first_chunk()?);
        (is_ours && Self::is_expression(expression)).then_some(Self { rate, burst })
    }
}

const LIMIT: &str = "limit";

/// Attributes of `limit`, in this order: `NFTA_LIMIT_RATE`, `NFTA_LIMIT_UNIT`, `NFTA_LIMIT_BURST`,
/// `NFTA_LIMIT_TYPE` and `NFTA_LIMIT_FLAGS`.
const RATE: u16 = 1;
const UNIT: u16 = 2;
const BURST: u16 = 3;
const KIND: u16 = 4;
const FLAGS: u16 = 5;

/// In this order: `NFT_LIMIT_PKT_BYTES` and `NFT_LIMIT_F_INV`.
const BYTES: u32 = 1;
const OVER: u32 = 1;

/// Time unit of a rate, in seconds; the kernel has no shorter one.
const SECOND: u64 = 1;
const NANOSECONDS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_read_as_it_was_written() {
        for (rate, burst) in [(1, 0), (1_375_000, 128_036), (14_000_000_000, u32::MAX)] {
            let limit = Limit::new(rate, burst).unwrap();
            assert_eq!(Limit::read(&limit.expression()), Some(limit));
        }
        let whole = Limit::OF_SETS.expression();
        for cut in 0..whole.len() {
            assert_eq!(Limit::read(&whole[..cut]), None);
        }
    }

    #[test]
    fn rate_that_the_kernel_cannot_count_is_none() {
        assert!(Limit::new(0, 1).is_none());
        assert!(Limit::new(18_446_744_073, 0).is_some());
        assert!(Limit::new(18_446_744_073, 1).is_none());
        assert!(Limit::new(u64::MAX, 1).is_none());
    }
}
