//! The limit of one direction, before the MTU of the link is known.

use cni::Error;
use tc::{BitsPerSecond, Burst, Limit};

/// A limit for one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Average rate.
    pub rate: BitsPerSecond,
    /// Bits that may pass at once. This may be a runtime's placeholder for an unset burst, which
    /// only the reference uses as a burst.
    pub burst: u64,
    /// The configuration key of the burst; `None` if no burst is configured. Then
    /// [`Asked::limit`] derives the burst from the rate.
    pub burst_key: Option<String>,
}

impl Asked {
    /// Returns the limit for a link with an MTU of `mtu` bytes.
    ///
    /// # Errors
    /// Code 7 with the bounds: a configured burst is out of range.
    pub fn limit(&self, mtu: u32) -> Result<Limit, Error> {
        let rate = self.rate;
        let burst = match &self.burst_key {
            None => Burst::derived(rate, mtu),
            Some(key) => Burst::from_bits(self.burst, mtu)
                .map_err(|error| Error::invalid(key, error.to_string()))?,
        };
        Ok(Limit { rate, burst })
    }
}
