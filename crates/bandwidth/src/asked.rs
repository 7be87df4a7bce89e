//! The limit of one direction as it was requested, without knowledge of the link's MTU.

use cni::Error;
use tc::{BitsPerSecond, Burst, Limit};

/// A requested limit for one direction: for the ingress or the egress of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Average rate.
    pub rate: BitsPerSecond,
    /// Burst in bits. Some runtimes send a very large placeholder for an unset burst. This field
    /// keeps the placeholder, because the Go plugin uses it as the burst, and CHECK accepts limits
    /// that the Go plugin set.
    pub burst: u64,
    /// The configuration key of the burst. `None` if no burst is configured: [`Asked::limit`] then
    /// derives the burst from the rate.
    pub burst_key: Option<String>,
    /// The limit that follows from the pod's devices (key `podResources`). Set only if the
    /// runtime or the pod requested the limit `self`, and the rate of `self` is at most the rate of
    /// the devices. [`Asked::limit`] then returns at most the burst of the devices' limit.
    pub within: Option<Box<Self>>,
}

impl Asked {
    /// Returns this limit, with the burst of `most` as the maximum of its burst.
    pub(crate) fn within(self, most: Self) -> Self {
        Self {
            within: Some(Box::new(most)),
            ..self
        }
    }

    /// Returns the limit for a link with an MTU of `mtu` bytes.
    ///
    /// # Errors
    /// Code 7 with the bounds: a configured burst is out of range.
    pub fn limit(&self, mtu: u32) -> Result<Limit, Error> {
        let rate = self.rate;
        let own = self.burst(mtu)?;
        let most = self.within.as_ref().map(|it| it.burst(mtu)).transpose()?;
        let burst = most.filter(|it| it.bytes() < own.bytes()).unwrap_or(own);
        Ok(Limit { rate, burst })
    }

    fn burst(&self, mtu: u32) -> Result<Burst, Error> {
        match &self.burst_key {
            None => Ok(Burst::derived(self.rate, mtu)),
            Some(key) => Burst::from_bits(self.burst, mtu)
                .map_err(|error| Error::invalid(key, error.to_string())),
        }
    }
}
