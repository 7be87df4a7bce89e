//! The configuration: the `ipam` section and the rules between its keys.

use std::path::{Path, PathBuf};

use cni::result::{Dns, Route};
use cni::{Error, Network, SpecVersion, WhenFull};
use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::Value;

use crate::pod_cidr;
use crate::range::{Range, RangeSet};
use crate::raw::{RawConfig, RawRange, RawRoute};
use crate::resolv_conf;
use crate::storage::{RawStorage, Storage};

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Range sets; a container gets one address of each.
    pub sets: Vec<RangeSet>,
    /// Routes, passed on to the plugin that creates them.
    pub routes: Vec<Route>,
    /// Path of a file in the format of resolv.conf(5), whose content is passed on.
    pub resolv_conf: Option<PathBuf>,
    /// Location and settings of the leases.
    pub storage: Storage,
    /// Result of STATUS for a range set without a free address.
    pub when_full: WhenFull,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawRuntimeConfig {
    ip_ranges: Value,
}

/// All inputs of a configuration.
#[derive(Debug)]
struct Written {
    ipam: RawConfig,
    runtime: RawRuntimeConfig,
    pod_cidrs: Vec<IpNetwork>,
    version: SpecVersion,
    may_lack_ranges: bool,
}

impl Written {
    fn read(network: &Network) -> Result<Self, Error> {
        let ipam: RawConfig = network.ipam()?;
        Ok(Self {
            pod_cidrs: ipam.pod_cidrs()?,
            ipam,
            runtime: network.runtime_config()?,
            version: network.version,
            may_lack_ranges: false,
        })
    }
}

impl Config {
    /// Reads the `ipam` section and the runtime's additions.
    ///
    /// # Errors
    /// Code 7 with key and value. Code 11: the node's pod CIDRs are not known yet.
    pub fn parse(network: &Network) -> Result<Self, Error> {
        Self::try_from(Written::read(network)?)
    }

    /// Reads the configuration for STATUS. It may lack ranges if it declares the capability
    /// `ipRanges`: runtimes pass no capability arguments with STATUS.
    pub(crate) fn parse_for_status(network: &Network) -> Result<Self, Error> {
        Self::try_from(Written {
            may_lack_ranges: network.declares("ipRanges"),
            ..Written::read(network)?
        })
    }

    /// Reads the name resolution from the file of `resolvConf`.
    pub(crate) fn dns(&self) -> anyhow::Result<Dns> {
        self.resolv_conf
            .as_deref()
            .map_or_else(|| Ok(Dns::default()), resolv_conf::read)
    }
}

impl TryFrom<Written> for Config {
    type Error = Error;

    fn try_from(
        Written {
            ipam,
            runtime,
            pod_cidrs,
            version,
            may_lack_ranges,
        }: Written,
    ) -> Result<Self, Error> {
        let mut sets = runtime_sets(&runtime.ip_ranges)?;
        sets.extend(ipam.flat_sets(pod_cidrs)?);
        for (index, set) in ipam.ranges.iter().enumerate() {
            sets.push(range_set(set, &format!("ipam.ranges[{index}]"))?);
        }
        if sets.is_empty() && !may_lack_ranges {
            let reason = "no range to lease from; name one by ranges or subnet, or have the runtime send ipRanges";
            return Err(Error::invalid("ipam.ranges", reason));
        }
        expect_apart(&sets)?;
        expect_one_a_family(&sets, version)?;
        let resolv_conf = Some(ipam.resolv_conf).filter(|path| !path.is_empty());
        Ok(Self {
            sets,
            routes: routes(ipam.routes)?,
            resolv_conf: resolv_conf.map(PathBuf::from),
            when_full: ipam.status_when_full,
            storage: Storage::try_from(RawStorage {
                data_dir: ipam.data_dir,
                lock_timeout: ipam.lock_timeout,
                reuse_delay: ipam.reuse_delay,
                reclaim_on_boot: ipam.reclaim_on_boot,
            })?,
        })
    }
}

impl RawConfig {
    /// Returns the node's pod CIDRs if `subnet` requests them.
    fn pod_cidrs(&self) -> Result<Vec<IpNetwork>, Error> {
        let file = Some(self.pod_cidr_file.as_str()).filter(|path| !path.is_empty());
        if self.subnet == USE_POD_CIDR {
            return pod_cidr::read(Path::new(file.unwrap_or(DEFAULT_POD_CIDR_FILE)));
        }
        match file {
            None => Ok(Vec::new()),
            Some(path) => Err(Error::invalid(
                "ipam.podCidrFile",
                format!("{path:?} is read where subnet is {USE_POD_CIDR:?}, which it is not"),
            )),
        }
    }

    /// Returns the sets of the older keys in the section itself: one set, or one for each family of
    /// the node's pod CIDRs.
    fn flat_sets(&self, pod_cidrs: Vec<IpNetwork>) -> Result<Vec<RangeSet>, Error> {
        let range = RawRange {
            subnet: self.subnet.clone(),
            range_start: self.range_start.clone(),
            range_end: self.range_end.clone(),
            gateway: self.gateway.clone(),
            exclude: self.exclude.clone(),
        };
        let bounds = [&range.range_start, &range.range_end, &range.gateway];
        let is_bounded = bounds.iter().any(|value| !value.is_empty()) || !range.exclude.is_empty();
        match (range.subnet.as_str(), is_bounded) {
            ("", false) => Ok(Vec::new()),
            (USE_POD_CIDR, false) => pod_cidr_sets(pod_cidrs),
            (USE_POD_CIDR, true) => Err(Error::invalid(
                "ipam.subnet",
                format!(
                    "{USE_POD_CIDR:?} takes none of rangeStart, rangeEnd, gateway and exclude, since it differs between nodes"
                ),
            )),
            _ => Ok(vec![RangeSet::new(
                vec![Range::parse(&range, "ipam")?],
                "ipam",
            )?]),
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

/// Parses `ipRanges`: a list of sets or, as one library sends it, a list of ranges. Such ranges
/// form a set for each family.
fn runtime_sets(value: &Value) -> Result<Vec<RangeSet>, Error> {
    let at = "runtimeConfig.ipRanges";
    let elements = value.as_array().map(Vec::as_slice).unwrap_or_default();
    if elements.iter().any(Value::is_object) {
        let raw: Vec<RawRange> = cni::json::read(value, at)?.value;
        return set_per_family(ranges(&raw, at)?, at);
    }
    if value.is_null() {
        return Ok(Vec::new());
    }
    let raw: Vec<Vec<RawRange>> = cni::json::read(value, at)?.value;
    let sets = raw
        .iter()
        .enumerate()
        .map(|(index, set)| range_set(set, &format!("{at}[{index}]")));
    sets.collect()
}

fn range_set(raw: &[RawRange], at: &str) -> Result<RangeSet, Error> {
    RangeSet::new(ranges(raw, at)?, at)
}

fn ranges(raw: &[RawRange], at: &str) -> Result<Vec<Range>, Error> {
    let ranges = raw
        .iter()
        .enumerate()
        .map(|(index, raw)| Range::parse(raw, &format!("{at}[{index}]")));
    ranges.collect()
}

fn expect_apart(sets: &[RangeSet]) -> Result<(), Error> {
    for (index, set) in sets.iter().enumerate() {
        let others = sets.iter().skip(index + 1);
        if let Some((range, other)) = others.into_iter().find_map(|other| set.overlap(other)) {
            return Err(Error::invalid(
                "ipam.ranges",
                format!("{}, another set", range.overlap_with(other)),
            ));
        }
    }
    Ok(())
}

/// Rejects several addresses of one family for results before 0.3.0, which hold only one.
fn expect_one_a_family(sets: &[RangeSet], version: SpecVersion) -> Result<(), Error> {
    let is_ipv4 = |set: &&RangeSet| set.ranges().iter().any(|range| range.subnet.is_ipv4());
    let ipv4 = sets.iter().filter(is_ipv4).count();
    if version < SpecVersion::V0_3_0 && (ipv4 > 1 || sets.len() - ipv4 > 1) {
        let reason = format!(
            "several range sets of one family need cniVersion 0.3.0 or later, not {version}"
        );
        return Err(Error::invalid("ipam.ranges", reason));
    }
    Ok(())
}

fn routes(raw: Vec<RawRoute>) -> Result<Vec<Route>, Error> {
    let routes = raw.into_iter().enumerate().map(|(index, raw)| {
        let invalid = |key: &str, value: &str, reason: String| {
            Error::invalid(
                format!("ipam.routes[{index}].{key}"),
                format!("{value:?}: {reason}"),
            )
        };
        let dst = raw.dst.parse();
        let gw = match raw.gw.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|error: std::net::AddrParseError| {
                invalid("gw", text, error.to_string())
            })?),
        };
        Ok(Route {
            gw,
            mtu: raw.mtu,
            advmss: raw.advmss,
            priority: raw.priority,
            table: raw.table,
            scope: raw.scope,
            ..Route::to(dst.map_err(|error: ipnetwork::IpNetworkError| {
                invalid("dst", &raw.dst, error.to_string())
            })?)
        })
    });
    routes.collect()
}

/// The value of `subnet` in the Kubernetes documentation's example.
const USE_POD_CIDR: &str = "usePodCidr";

/// File to which flannel writes its subnet.
const DEFAULT_POD_CIDR_FILE: &str = "/run/flannel/subnet.env";

#[cfg(test)]
mod tests;
