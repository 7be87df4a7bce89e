//! The configuration: limits from the plugin's keys, the runtime or the pod's annotations.

use std::collections::BTreeMap;

use cni::{CheckRequest, Error, Network, keys, note};
use ipnetwork::IpNetwork;
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
        let (raw, parent, priority) = if own.is_given() {
            (own.limits(), "", Priority::Allocated)
        } else if of_runtime.limits().iter().any(|it| it.rate != 0) {
            let parent = "runtimeConfig.bandwidth.";
            (of_runtime.limits(), parent, Priority::Lower)
        } else {
            (annotated(&runtime.annotations)?, "", Priority::Lower)
        };
        let default_burst = own.default_burst.unwrap_or_default();
        let pod_resources = PodResources::parse(&own, priority)?;
        let mut limits = BTreeMap::new();
        for raw in raw {
            let asked = raw.asked(parent, default_burst)?;
            limits.extend(asked.map(|it| (raw.direction, it)));
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

/// Rate and burst of one direction. A value of 0 counts as unset.
struct RawLimit {
    direction: Direction,
    rate: u64,
    burst: u64,
}

impl RawConfig {
    /// Returns whether the plugin's own keys set a rate or a burst. Then the runtime's limits do not
    /// apply.
    pub fn is_given(&self) -> bool {
        let keys = [
            self.ingress_rate,
            self.ingress_burst,
            self.egress_rate,
            self.egress_burst,
        ];
        keys.iter().any(Option::is_some)
    }

    fn limits(&self) -> [RawLimit; 2] {
        let limit = |direction, rate: Option<u64>, burst: Option<u64>| RawLimit {
            direction,
            rate: rate.unwrap_or_default(),
            burst: burst.unwrap_or_default(),
        };
        [
            limit(Direction::Ingress, self.ingress_rate, self.ingress_burst),
            limit(Direction::Egress, self.egress_rate, self.egress_burst),
        ]
    }
}

impl RawLimit {
    fn asked(&self, parent: &str, default_burst: u64) -> Result<Option<Asked>, Error> {
        let is_chosen = self.burst != 0 && !SENTINELS.contains(&self.burst);
        let key = |end| format!("{parent}{}{end}", self.direction.word());
        if self.rate == 0 {
            if is_chosen {
                let (burst, rate) = (key("Burst"), key("Rate"));
                note!("{burst} does nothing without {rate}");
            }
            return Ok(None);
        }
        let rate = BitsPerSecond::try_from(self.rate)
            .map_err(|error| Error::invalid(key("Rate"), error.to_string()))?;
        let (burst, burst_key) = match default_burst {
            _ if is_chosen => (self.burst, Some(key("Burst"))),
            0 => (self.burst, None),
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

/// Reads the rates from the pod's annotations: ingress, then egress. A missing annotation gives the
/// rate 0. Annotations contain no burst.
fn annotated(annotations: &BTreeMap<String, String>) -> Result<[RawLimit; 2], Error> {
    let rates = ANNOTATIONS.map(|key| {
        let text = annotations.get(key);
        text.map_or(Ok(0), |text| annotated_rate(key, text))
    });
    let limit = |direction, rate| RawLimit {
        direction,
        rate,
        burst: 0,
    };
    let [ingress, egress] = rates;
    let ingress = limit(Direction::Ingress, ingress?);
    Ok([ingress, limit(Direction::Egress, egress?)])
}

fn annotated_rate(key: &str, text: &str) -> Result<u64, Error> {
    let rate = quantity::parse(text);
    let rate = rate.filter(|rate| (LEAST_ANNOTATED..=MOST_ANNOTATED).contains(rate));
    rate.ok_or_else(|| {
        let reason = format!("{text:?} is no quantity from 1k to 1P, such as 10M");
        Error::invalid(key, reason)
    })
}

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
        let subnet = IpNetwork::new(written.network(), written.prefix()).unwrap_or(written);
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
