//! Recognizes limits that the Go plugin `bandwidth` (containernetworking/plugins) set.
//!
//! Runtimes send a very large number for an unset burst, and the Go plugin uses this number as the
//! burst. Its computations with 32 bits then overflow. So this module computes with the same
//! overflow. It does not compare the burst of an HTB class if the kernel cannot represent the time
//! that the burst takes at the rate.
//!
//! Versions 1.5.0 and 1.5.1 of the Go plugin set an HTB with a limited and an unlimited class. All
//! other versions set a TBF.

use netlink::{Handle, HeldBucket, QdiscKind, TokenBucket};

use crate::link_egress::MAJOR_OF_REFERENCE;
use crate::{BitsPerSecond, Error, LinkEgress};

impl LinkEgress<'_> {
    /// Returns whether the link has the limit for all traffic that the Go plugin `bandwidth` sets
    /// for this rate and a burst of `bits`.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn is_of_reference(&self, rate: BitsPerSecond, bits: u64) -> Result<bool, Error> {
        let root = self.connection.qdisc(self.link.index, Handle::ROOT)?;
        let root = root.filter(|root| root.handle == Handle::new(MAJOR_OF_REFERENCE, 0));
        match root.map(|root| root.kind) {
            Some(QdiscKind::Tbf(held)) => {
                Ok(held.rate == rate.bytes() && held.limit == queue(rate, bits))
            }
            Some(QdiscKind::Htb { default, .. }) if default == u32::from(LIMITED.minor) => {
                self.has_class_of_reference(rate, bits)
            }
            _ => Ok(false),
        }
    }

    fn has_class_of_reference(&self, rate: BitsPerSecond, bits: u64) -> Result<bool, Error> {
        let class = self.class(LIMITED)?;
        let wanted = TokenBucket {
            rate: rate.bytes(),
            burst: burst(bits),
            ..TokenBucket::default()
        };
        let is_same = |held: HeldBucket| {
            held.rate == wanted.rate && (wanted.overflows() || wanted.is_held_by(&held))
        };
        Ok(class.is_some_and(is_same))
    }
}

/// Returns the length in bytes of the queue that the Go plugin `bandwidth` sets for this rate and a
/// burst of `bits`: the bytes that pass in 25 ms plus the burst. The sum wraps around at 32 bits,
/// as in the Go plugin.
fn queue(rate: BitsPerSecond, bits: u64) -> u32 {
    rate.waiting().wrapping_add(burst(bits))
}

/// Returns the burst in bytes that the Go plugin `bandwidth` sets for a burst of `bits`. The Go
/// plugin keeps only the lower 32 bits.
fn burst(bits: u64) -> u32 {
    u32::try_from((bits / 8) & u64::from(u32::MAX)).unwrap_or_default()
}

/// The limited class of the Go plugin `bandwidth` (`ShapedClassMinorID`).
const LIMITED: Handle = Handle::new(MAJOR_OF_REFERENCE, 48);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_wraps_around_as_in_the_reference() {
        // Values that the executable of the Go plugin `bandwidth` set.
        let queue = |rate: u64, bits| queue(rate.try_into().unwrap(), bits);
        assert_eq!(queue(20_000_000, 34_359_738_359), 62_498);
        assert_eq!(queue(10_000_000, 4_294_967_295), 536_902_161);
    }
}
