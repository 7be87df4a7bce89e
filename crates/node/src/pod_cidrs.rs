//! The node's pod CIDRs, from which host-local leases if its configuration has `usePodCidr`.
//!
//! An invalid file counts as empty here, because host-local reports it at STATUS.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cni::json;
use host_local::pod_cidr;
use ipnetwork::IpNetwork;
use runtime::PluginConfig;
use serde_json::{Map, Value};

/// Returns the pod CIDRs in each file that an `ipam` section of the plugins uses. The key is the path
/// of the file.
pub(super) fn of(plugins: &[PluginConfig]) -> BTreeMap<PathBuf, Vec<IpNetwork>> {
    let files = plugins.iter().filter_map(PluginConfig::ipam);
    let files = files.filter_map(file_of);
    let cidrs = |file: &Path| pod_cidr::read(file).unwrap_or_default();
    files.map(|file| (file.to_owned(), cidrs(file))).collect()
}

/// Returns the file with the pod CIDRs for this `ipam` section; `None` if the section's `subnet` is
/// not `usePodCidr`.
pub(super) fn file_of(ipam: &Map<String, Value>) -> Option<&Path> {
    let text = |key| json::value(ipam, key).and_then(Value::as_str);
    pod_cidr::file_of(text("subnet")?, text("podCidrFile").unwrap_or_default())
}
