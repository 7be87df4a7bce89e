//! The configuration: limits from the plugin's keys, the runtime or the pod's annotations.

use std::collections::BTreeMap;

use cni::{CheckRequest, Error, Network, keys, note};
use ipnetwork::IpNetwork;
use netlink::network_of;
use serde::Deserialize;
use tc::{BitsPerSecond, Traffic};

use crate::pod_resources::Priority;
use crate::record::Allocation;
use crate::{Asked, Direction, PodResources, RawConfig, quantity, record};

/// The configured limits of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The limits. A direction without a limit is missing.
    pub limits: BTreeMap<Direction, Asked>,
    /// The traffic that the limits apply to.
    pub traffic: Traffic,
    /// The device-plugin resources that limit a pod, and where to read which devices the kubelet
    /// allocated to the pod. `None` if the key `podResources` names no resource.
    pub pod_resources: Option<PodResources>,
}

impl Config {
    /// Reads the configuration, including the limits that the runtime added (`runtimeConfig`).
    ///
    /// # Errors
    /// Code 7: a value is invalid; the error names its key.
    pub fn parse(network: &Network) -> Result<Self, Error> {
        Self::of(network.config()?, network.runtime_config()?)
    }

    /// Reads the configuration of an existing attachment. The limits include the bandwidth that the
    /// kubelet allocated to the pod, as ADD recorded it.
    ///
    /// # Errors
    /// As [`Self::parse`]. Also if the record of the allocated bandwidth cannot be read.
    pub(crate) fn of_attachment(request: &CheckRequest) -> anyhow::Result<Self> {
        let config = Self::parse(&request.network)?;
        if config.pod_resources.is_none() {
            return Ok(config);
        }
        let record = record::read(&request.attachment.owner())?;
        Ok(config.with(&record.allocation))
    }

    /// Returns the configuration with the limits that follow from the pod's `allocation`.
    pub(crate) fn with(mut self, allocation: &Allocation) -> Self {
        if let Some(resources) = &self.pod_resources {
            for (direction, rate) in allocation {
                let limit = resources.limit(self.limits.remove(direction), *rate);
                self.limits.insert(*direction, limit);
            }
        }
        self
    }

    /// Creates the configuration. Takes rates and bursts from the first source that has any: the
    /// plugin's own keys, then `runtimeConfig.bandwidth`, then the pod's annotations. A 0 in the
    /// plugin's keys counts as a value. `runtimeConfig.bandwidth` counts only if it has a rate
    /// other than 0, since runtimes send 0 for unset values.
    fn of(own: RawConfig, runtime: RuntimeConfig) -> Result<Self, Error> {
        let of_runtime = runtime.bandwidth.unwrap_or_default();
        let annotated;
        let (raw, parent, priority) = if own.is_given() {
            (&own, "", Priority::Allocated)
        } else if DIRECTIONS.iter().any(|it| of_runtime.limit(*it)[0] != 0) {
            (&of_runtime, "runtimeConfig.bandwidth.", Priority::Lower)
        } else {
            annotated = self::annotated(&runtime.annotations)?;
            (&annotated, "", Priority::Lower)
        };
        let default_burst = own.default_burst.unwrap_or_default();
        let pod_resources = PodResources::parse(&own, priority)?;
        let mut limits = BTreeMap::new();
        for direction in DIRECTIONS {
            let asked = raw.asked(direction, parent, default_burst)?;
            limits.extend(asked.map(|it| (direction, it)));
        }
        let (shaped, unshaped) = match (own.shaped_subnets, own.unshaped_subnets) {
            (None, None) => (of_runtime.shaped_subnets, of_runtime.unshaped_subnets),
            own => own,
        };
        Ok(Self {
            limits,
            traffic: traffic(shaped, unshaped)?,
            pod_resources,
        })
    }
}

/// The capability that makes containerd pass the pod's annotations to the plugin.
pub const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    bandwidth: Option<RawConfig>,
    #[serde(rename = "io.kubernetes.cri.pod-annotations")]
    annotations: BTreeMap<String, String>,
}

impl RawConfig {
    /// Returns whether the plugin's own keys set a rate or a burst. Then the runtime's limits do not
    /// apply.
    pub fn is_given(&self) -> bool {
        let mut keys = DIRECTIONS.iter().flat_map(|it| self.keys(*it));
        keys.any(|it| it.is_some())
    }

    /// Returns the rate and the burst of a direction.
    fn keys(&self, direction: Direction) -> [Option<u64>; 2] {
        match direction {
            Direction::Ingress => [self.ingress_rate, self.ingress_burst],
            Direction::Egress => [self.egress_rate, self.egress_burst],
        }
    }

    /// Returns the rate and the burst of a direction. A value of 0 counts as unset.
    fn limit(&self, direction: Direction) -> [u64; 2] {
        self.keys(direction).map(Option::unwrap_or_default)
    }

    fn asked(
        &self,
        direction: Direction,
        parent: &str,
        default_burst: u64,
    ) -> Result<Option<Asked>, Error> {
        let [rate, burst] = self.limit(direction);
        let is_chosen = burst != 0 && !SENTINELS.contains(&burst);
        let key = |end| format!("{parent}{}{end}", direction.word());
        if rate == 0 {
            if is_chosen {
                let (burst, rate) = (key("Burst"), key("Rate"));
                note!("{burst} does nothing without {rate}");
            }
            return Ok(None);
        }
        let rate = BitsPerSecond::try_from(rate)
            .map_err(|error| Error::invalid(key("Rate"), error.to_string()))?;
        let (burst, burst_key) = match default_burst {
            _ if is_chosen => (burst, Some(key("Burst"))),
            0 => (burst, None),
            default => (default, Some("defaultBurst".to_owned())),
        };
        Ok(Some(Asked {
            rate,
            burst,
            burst_key,
            within: None,
        }))
    }
}

/// Reads the rates from the pod's annotations, which contain no burst.
fn annotated(annotations: &BTreeMap<String, String>) -> Result<RawConfig, Error> {
    let [ingress, egress] = ANNOTATIONS.map(|key| {
        let text = annotations.get(key);
        text.map(|it| annotated_rate(key, it)).transpose()
    });
    Ok(RawConfig {
        ingress_rate: ingress?,
        egress_rate: egress?,
        ..RawConfig::default()
    })
}

fn annotated_rate(key: &str, text: &str) -> Result<u64, Error> {
    let rate = quantity::parse(text);
    let rate = rate.filter(|rate| (LEAST_ANNOTATED..=MOST_ANNOTATED).contains(rate));
    rate.ok_or_else(|| {
        let reason = format!("{text:?} is no quantity from 1k to 1P, such as 10M");
        Error::invalid(key, reason)
    })
}

/// The directions in the order in which errors report them.
const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

type Subnets = Option<Vec<String>>;

fn traffic(shaped: Subnets, unshaped: Subnets) -> Result<Traffic, Error> {
    let given = |list: Subnets| list.filter(|list| !list.is_empty());
    match (given(shaped), given(unshaped)) {
        (None, None) => Ok(Traffic::All),
        (Some(shaped), None) => Ok(Traffic::Only(subnets("shapedSubnets", &shaped)?)),
        (None, Some(unshaped)) => Ok(Traffic::AllBut(subnets("unshapedSubnets", &unshaped)?)),
        (Some(_), Some(_)) => Err(Error::invalid(
            "shapedSubnets",
            "together with unshapedSubnets; remove one of them",
        )),
    }
}

/// Parses the CIDRs in `texts`, clears their host bits and removes duplicates. `key` is their key
/// in the configuration, for errors.
fn subnets(key: &str, texts: &[String]) -> Result<Vec<IpNetwork>, Error> {
    let mut subnets = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let key = format!("{key}[{index}]");
        let written: IpNetwork = keys::parsed(text, &key)?;
        if !text.contains('/') {
            let reason = format!("{text:?}: no length of a prefix, as in 10.0.0.0/8");
            return Err(Error::invalid(key, reason));
        }
        let subnet = network_of(written);
        if !subnets.contains(&subnet) {
            subnets.push(subnet);
        }
    }
    Ok(subnets)
}

/// Values that runtimes send for an unset burst: containerd (`MaxUint32` bits), CRI-O (`MaxUint32`
/// bytes, less one bit), cri-dockerd (`MaxInt32` bits).
const SENTINELS: [u64; 3] = [4_294_967_295, 34_359_738_359, 2_147_483_647];

/// Names of two annotations of a pod: the rate at which the pod receives, then the rate at which it
/// sends. Both are Kubernetes quantities in bits per second.
pub const ANNOTATIONS: [&str; 2] = [
    "kubernetes.io/ingress-bandwidth",
    "kubernetes.io/egress-bandwidth",
];

/// The lowest and the highest rate that Kubernetes accepts in annotations, in bits per second.
const LEAST_ANNOTATED: u64 = 1000;
const MOST_ANNOTATED: u64 = 1_000_000_000_000_000;

#[cfg(test)]
mod tests;
