//! Finds pods that have devices of bandwidth, but whose ADD limited them to none.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use runtime::{Directories, may_exist};

/// Namespace and name of a pod of Kubernetes.
pub type PodName = (String, String);

/// Returns those of `pods`, to which the kubelet allocated bandwidth, that have an attachment, but
/// none whose ADD used the allocation. Leaves out pods with an attachment that is younger than a
/// minute, because the ADD of another network may still run.
///
/// # Errors
/// The cache cannot be read.
pub fn unlimited(
    directories: &Directories,
    mut pods: BTreeSet<PodName>,
) -> anyhow::Result<BTreeSet<PodName>> {
    let cache = &directories.cache;
    let mut attached = BTreeSet::new();
    for (attachment, entry) in cache.entries()?.into_iter().flatten() {
        let argument = |name| entry.arguments.cni_value(name).unwrap_or_default();
        let pod = ["K8S_POD_NAMESPACE", "K8S_POD_NAME"].map(|it| argument(it).to_owned());
        let pod = PodName::from(pod);
        if !pods.contains(&pod) || !may_exist(entry.netns()) {
            continue;
        }
        let age = |it| SystemTime::now().duration_since(it).unwrap_or_default();
        let written = cache.written(&attachment);
        let is_settled = written.is_some_and(|it| age(it) >= SETTLED);
        if is_settled && !bandwidth::has_allocation(&attachment.owner()) {
            attached.insert(pod);
        } else {
            pods.remove(&pod);
        }
    }
    attached.retain(|it| pods.contains(it));
    Ok(attached)
}

/// The time after which all networks of a pod should have been attached.
const SETTLED: Duration = Duration::from_mins(1);
