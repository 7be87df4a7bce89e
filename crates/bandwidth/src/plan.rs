//! The limits for a link of a given MTU.

use cni::Error;
use tc::{Burst, Limit, Traffic};

use crate::config::{Asked, Config};

/// The limits of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Limit of the host end's egress, towards the sandbox.
    pub ingress: Option<Limit>,
    /// Limit of the host end's ingress, from the sandbox.
    pub egress: Option<Limit>,
    /// The limited traffic.
    pub traffic: Traffic,
}

impl Plan {
    /// Computes the bursts for an MTU of `mtu` bytes.
    ///
    /// # Errors
    /// Code 7 with the bounds: a configured burst is out of range.
    pub fn new(config: &Config, mtu: u32) -> Result<Self, Error> {
        let limit = |asked: &Option<Asked>| asked.as_ref().map(|it| limit(it, mtu)).transpose();
        Ok(Self {
            ingress: limit(&config.ingress)?,
            egress: limit(&config.egress)?,
            traffic: config.traffic.clone(),
        })
    }
}

/// Returns the limit of one direction. Fails as [`Plan::new`].
pub(crate) fn limit(asked: &Asked, mtu: u32) -> Result<Limit, Error> {
    let rate = asked.rate;
    let burst = match &asked.burst.key {
        None => Burst::derived(rate, mtu),
        Some(key) => Burst::from_bits(asked.burst.bits, mtu)
            .map_err(|error| Error::invalid(key, error.to_string()))?,
    };
    Ok(Limit { rate, burst })
}
