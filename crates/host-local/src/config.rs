//! The configuration: the `ipam` section and the rules between its keys.

use std::path::PathBuf;

use cni::keys::{self, routes};
use cni::result::{Dns, Route};
use cni::{Error, Network, WhenFull, note};
use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::pod_cidr::{self, USE_POD_CIDR};
use crate::range::{RangeSet, overlap};
use crate::{Range, RawConfig, RawRange, Storage, resolv_conf};

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Range sets; a container gets one address of each set.
    pub sets: Vec<RangeSet>,
    /// Routes of the result. The plugin that called this one creates them.
    pub routes: Vec<Route>,
    /// Path of a file in the format of resolv.conf(5); its content becomes `dns` of the result.
    pub resolv_conf: Option<PathBuf>,
    /// Location and settings of the leases.
    pub storage: Storage,
    /// What STATUS does if a range set has no free address: fails, or only writes a message.
    pub when_full: WhenFull,
}

impl Config {
    /// Reads the `ipam` section, and `ipRanges` from the runtime.
    ///
    /// # Errors
    /// - Code 7: a value is invalid; the error names the key and the value.
    /// - Code 11: the node's pod CIDRs are not known yet.
    pub fn parse(network: &Network) -> Result<Self, Error> {
        Self::read(network)?.expect_ranges()
    }

    /// Reads the configuration for STATUS. Accepts a configuration without ranges if it declares
    /// the capability `ipRanges`, since runtimes pass no capability arguments with STATUS.
    pub(crate) fn parse_for_status(network: &Network) -> Result<Self, Error> {
        let config = Self::read(network)?;
        if network.declares("ipRanges") {
            return Ok(config);
        }
        config.expect_ranges()
    }

    fn read(network: &Network) -> Result<Self, Error> {
        let ipam: RawConfig = network.ipam()?;
        let pod_cidrs = ipam.pod_cidrs()?;
        let mut config = Self::new(ipam, &network.key(RUNTIME_RANGES)?, pod_cidrs)?;
        if wants_gateway(network) {
            let sets = config.sets.into_iter();
            config.sets = sets.map(RangeSet::with_gateways).collect();
        }
        let ranges = config.sets.iter().filter_map(|set| set.ranges().first());
        let subnets: Vec<_> = ranges.map(|range| range.subnet).collect();
        let key = "ipam.ranges";
        keys::expect_one_a_family(network.version, &subnets, key, "range sets")?;
        Ok(config)
    }

    fn new(
        ipam: RawConfig,
        runtime_ranges: &Value,
        pod_cidrs: Vec<IpNetwork>,
    ) -> Result<Self, Error> {
        let mut sets = runtime_sets(runtime_ranges)?;
        sets.extend(ipam.flat_sets(pod_cidrs)?);
        sets.extend(range_sets(&ipam.ranges, "ipam.ranges")?);
        expect_apart(&sets)?;
        Ok(Self {
            sets,
            routes: routes(&ipam.routes)?,
            storage: Storage::new(&ipam)?,
            when_full: ipam.status_when_full,
            resolv_conf: (!ipam.resolv_conf.is_empty()).then(|| ipam.resolv_conf.into()),
        })
    }

    fn expect_ranges(self) -> Result<Self, Error> {
        if self.sets.is_empty() {
            let reason =
                "no range to lease from; set ranges or subnet, or let the runtime pass ipRanges";
            return Err(Error::invalid("ipam.ranges", reason));
        }
        Ok(self)
    }

    /// Reads the DNS settings from the file that the key `resolvConf` names. Returns empty settings
    /// if the key is not set.
    pub(crate) fn dns(&self) -> anyhow::Result<Dns> {
        self.resolv_conf
            .as_deref()
            .map_or_else(|| Ok(Dns::default()), resolv_conf::read)
    }
}

impl RawConfig {
    /// Returns the node's pod CIDRs if `subnet` is `usePodCidr`, else an empty list.
    fn pod_cidrs(&self) -> Result<Vec<IpNetwork>, Error> {
        if let Some(file) = pod_cidr::file_of(&self.subnet, &self.pod_cidr_file) {
            return pod_cidr::read(file);
        }
        match self.pod_cidr_file.as_str() {
            "" => Ok(Vec::new()),
            file => Err(Error::invalid(
                "ipam.podCidrFile",
                format!("{file:?} needs \"subnet\": {USE_POD_CIDR:?}"),
            )),
        }
    }

    /// Returns the range sets that are configured outside `ranges`, by keys directly in the `ipam`
    /// section such as `subnet` and `rangeStart`. These keys form one set. If `subnet` is
    /// `usePodCidr`, `pod_cidrs` form one set for each IP family instead. Without `subnet`, the
    /// other keys do nothing.
    fn flat_sets(&self, pod_cidrs: Vec<IpNetwork>) -> Result<Vec<RangeSet>, Error> {
        let range = RawRange {
            subnet: self.subnet.clone(),
            range_start: self.range_start.clone(),
            range_end: self.range_end.clone(),
            gateway: self.gateway.clone(),
            exclude: self.exclude.clone(),
        };
        let bounds = [
            ("rangeStart", range.range_start.is_empty()),
            ("rangeEnd", range.range_end.is_empty()),
            ("gateway", range.gateway.is_empty()),
            ("exclude", range.exclude.is_empty()),
        ];
        let bounds = bounds.into_iter().filter(|(_, is_empty)| !is_empty);
        let bounds: Vec<_> = bounds.map(|(key, _)| key).collect();
        match (range.subnet.as_str(), bounds.is_empty()) {
            ("", true) => Ok(Vec::new()),
            ("", false) => {
                let keys = bounds.join(", ");
                note!("ipam: without subnet, these keys do nothing: {keys}");
                Ok(Vec::new())
            }
            (USE_POD_CIDR, true) => pod_cidr_sets(pod_cidrs),
            (USE_POD_CIDR, false) => Err(Error::invalid(
                "ipam.subnet",
                format!(
                    "{USE_POD_CIDR:?} differs between nodes, so rangeStart, rangeEnd, gateway and exclude must be absent"
                ),
            )),
            _ => RangeSet::new(vec![Range::parse(&range, "ipam")?], "ipam").map(|set| vec![set]),
        }
    }
}

fn pod_cidr_sets(pod_cidrs: Vec<IpNetwork>) -> Result<Vec<RangeSet>, Error> {
    let at = format!("ipam (subnet {USE_POD_CIDR})");
    let raw = pod_cidrs.into_iter().map(|cidr| RawRange {
        subnet: cidr.to_string(),
        ..RawRange::default()
    });
    let raw: Vec<_> = raw.collect();
    set_per_family(ranges(&raw, &at)?, &at)
}

fn set_per_family(ranges: Vec<Range>, at: &str) -> Result<Vec<RangeSet>, Error> {
    let is_ipv4 = |range: &Range| range.subnet.is_ipv4();
    let (v4, v6): (Vec<_>, Vec<_>) = ranges.into_iter().partition(is_ipv4);
    let families = [v4, v6].into_iter().filter(|family| !family.is_empty());
    families.map(|family| RangeSet::new(family, at)).collect()
}

/// Parses `ipRanges`, a list of range sets. Some runtimes send a flat list of ranges instead, which
/// form one set for each IP family.
fn runtime_sets(value: &Value) -> Result<Vec<RangeSet>, Error> {
    let at = RUNTIME_RANGES;
    let is_flat = |elements: &Vec<Value>| elements.iter().any(Value::is_object);
    if value.as_array().is_some_and(is_flat) {
        let raw: Vec<RawRange> = cni::json::read(value, at)?.value;
        return set_per_family(ranges(&raw, at)?, at);
    }
    if value.is_null() {
        return Ok(Vec::new());
    }
    let raw: Vec<Vec<RawRange>> = cni::json::read(value, at)?.value;
    range_sets(&raw, at)
}

fn range_sets(raw: &[Vec<RawRange>], at: &str) -> Result<Vec<RangeSet>, Error> {
    let sets = raw.iter().enumerate().map(|(index, set)| {
        let at = format!("{at}[{index}]");
        RangeSet::new(ranges(set, &at)?, &at)
    });
    sets.collect()
}

fn ranges(raw: &[RawRange], at: &str) -> Result<Vec<Range>, Error> {
    let parse = |(index, raw)| Range::parse(raw, &format!("{at}[{index}]"));
    raw.iter().enumerate().map(parse).collect()
}

fn expect_apart(sets: &[RangeSet]) -> Result<(), Error> {
    let ranges: Vec<_> = sets.iter().flat_map(RangeSet::ranges).collect();
    let overlapping = |reason| Error::invalid("ipam.ranges", format!("{reason}, another set"));
    overlap(&ranges).map_or(Ok(()), |reason| Err(overlapping(reason)))
}

/// Returns whether a key of the calling plugin makes the host the gateway.
fn wants_gateway(network: &Network) -> bool {
    let is_set = |key: &&str| network.key(key).unwrap_or(false);
    let is_routed = network.key::<String>("type").is_ok_and(|it| it == "ptp");
    is_routed || ["isGateway", "isDefaultGateway"].iter().any(is_set)
}

/// The ranges that the runtime passes for the capability `ipRanges`.
const RUNTIME_RANGES: &str = "runtimeConfig.ipRanges";

#[cfg(test)]
mod tests;
