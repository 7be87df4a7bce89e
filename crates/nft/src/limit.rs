//! A shared rate limit of the packets with one key of a set (`struct nft_limit_priv` in
//! `net/netfilter/nft_limit.c`).

use netlink_packet_core::{
    DefaultNla, Emitable as _, NLA_F_NESTED, NLA_TYPE_MASK, Nla as _, NlasIterator,
};
use netlink_packet_netfilter::nftables::{ExpressionAttribute, Expressions, SetElementAttribute};
use serde::{Deserialize, Serialize};

/// A token bucket. A full one holds `burst` plus the bytes of one second, because the kernel counts
/// in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limit {
    /// Bytes per second.
    rate: u64,
    /// Bytes.
    burst: u32,
}

impl Limit {
    /// Creates a bucket of `burst` bytes that fills with `rate` bytes per second. Returns `None` if
    /// the rate is 0 or the kernel cannot count it: more than 18 GB/s including the burst.
    pub fn new(rate: u64, burst: u32) -> Option<Self> {
        let in_a_second = rate.checked_add(burst.into())?;
        in_a_second.checked_mul(NANOSECONDS)?;
        (rate > 0).then_some(Self { rate, burst })
    }

    /// Default limit of a set with limits. nft(8) rejects a limit in an element of a set without
    /// it. Each element has its own limit, so the default is unused.
    pub(crate) const OF_SETS: Self = Self { rate: 1, burst: 0 };

    /// `limit rate over …`: the rule continues for packets above the limit and ends for all others.
    pub(crate) fn expression(self) -> Vec<u8> {
        let number = |kind, number: u32| DefaultNla::new(kind, number.to_be_bytes().to_vec());
        let long = |kind, number: u64| DefaultNla::new(kind, number.to_be_bytes().to_vec());
        let attributes = vec![
            long(RATE, self.rate),
            long(UNIT, SECOND),
            number(BURST, self.burst),
            number(KIND, BYTES),
            number(FLAGS, OVER),
        ];
        let expression = [
            ExpressionAttribute::Name(NAME.to_owned()),
            ExpressionAttribute::Data(Expressions::Other {
                expression_type: NAME.to_owned(),
                attributes,
            }),
        ];
        let mut bytes = vec![0; expression.as_slice().buffer_len()];
        expression.as_slice().emit(&mut bytes);
        bytes
    }

    /// Returns the limit as an element's attribute; the library has no attribute that it can read
    /// back.
    pub(crate) fn attribute(self) -> SetElementAttribute {
        let kind = ELEMENT_EXPRESSION | NLA_F_NESTED;
        SetElementAttribute::Other(DefaultNla::new(kind, self.expression()))
    }

    /// Reads the result of [`Self::attribute`]; `None` for anything else.
    pub(crate) fn of_attribute(attribute: &DefaultNla) -> Option<Self> {
        let mut expression = vec![0; attribute.value_len()];
        attribute.emit_value(&mut expression);
        let is_expression = attribute.kind() & NLA_TYPE_MASK == ELEMENT_EXPRESSION;
        is_expression.then(|| Self::read(&expression))?
    }

    /// Reads the result of [`Self::expression`]; `None` for any other expression.
    fn read(expression: &[u8]) -> Option<Self> {
        let data = find(expression, DATA)?;
        let long = |kind| Some(u64::from_be_bytes(*find(&data, kind)?.first_chunk()?));
        let number = |kind| Some(u32::from_be_bytes(*find(&data, kind)?.first_chunk()?));
        let is_ours = find(expression, EXPRESSION_NAME)? == b"limit\0"
            && long(UNIT)? == SECOND
            && number(KIND)? == BYTES
            && number(FLAGS)? == OVER;
        let (rate, burst) = (long(RATE)?, number(BURST)?);
        is_ours.then_some(Self { rate, burst })
    }
}

/// Returns the content of the first attribute of this kind.
fn find(attributes: &[u8], kind: u16) -> Option<Vec<u8>> {
    let mut attributes = NlasIterator::new(attributes).map_while(Result::ok);
    let found = attributes.find(|it| it.kind() == kind)?;
    Some(found.value().to_vec())
}

const NAME: &str = "limit";

/// `NFTA_SET_ELEM_EXPR`
pub(crate) const ELEMENT_EXPRESSION: u16 = 7;

/// `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`
const EXPRESSION_NAME: u16 = 1;
const DATA: u16 = 2;

/// `NFTA_LIMIT_RATE`, `NFTA_LIMIT_UNIT`, `NFTA_LIMIT_BURST`, `NFTA_LIMIT_TYPE` and
/// `NFTA_LIMIT_FLAGS`
const RATE: u16 = 1;
const UNIT: u16 = 2;
const BURST: u16 = 3;
const KIND: u16 = 4;
const FLAGS: u16 = 5;

/// `NFT_LIMIT_PKT_BYTES` and `NFT_LIMIT_F_INV`
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
