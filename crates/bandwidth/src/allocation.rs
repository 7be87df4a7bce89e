//! The bandwidth that the kubelet allocated to a pod.

use std::fmt;
use std::str::FromStr;

use anyhow::Context as _;
use tc::BitsPerSecond;

use crate::resource::Direction;

/// The rates that the kubelet allocated to a pod: each is the sum of the pod's devices of a
/// resource such as `example.org/egress-10mbit`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// The rate towards the pod; `None` if the pod has no devices of ingress bandwidth.
    pub ingress: Option<BitsPerSecond>,
    /// The rate from the pod; `None` if the pod has no devices of egress bandwidth.
    pub egress: Option<BitsPerSecond>,
}

impl Allocation {
    /// Returns whether the kubelet allocated no bandwidth to the pod.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Writes a line for each direction that has a rate, in bit/s, such as `ingress 20000000`.
impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = [
            (Direction::Ingress, self.ingress),
            (Direction::Egress, self.egress),
        ];
        for (direction, rate) in rates {
            if let Some(rate) = rate {
                writeln!(f, "{} {}", direction.word(), rate.bytes() * 8)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Allocation {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut allocation = Self::default();
        for line in text.lines() {
            let (word, bits) = line.split_once(' ').context("a line has no rate")?;
            let rate = BitsPerSecond::try_from(bits.parse::<u64>()?)?;
            match word {
                "ingress" => allocation.ingress = Some(rate),
                "egress" => allocation.egress = Some(rate),
                _ => anyhow::bail!("{word:?} is no direction"),
            }
        }
        Ok(allocation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_again() {
        let rate = BitsPerSecond::try_from(20_000_000).ok();
        for [ingress, egress] in [[None, None], [rate, None], [None, rate], [rate, rate]] {
            let allocation = Allocation { ingress, egress };
            let text = allocation.to_string();
            assert_eq!(text.parse::<Allocation>().unwrap(), allocation, "{text:?}");
        }
    }

    #[test]
    fn another_text_is_refused() {
        for text in ["ingress", "ingress 1", "ingress x", "both 20000000", "\n"] {
            text.parse::<Allocation>().unwrap_err();
        }
    }
}
