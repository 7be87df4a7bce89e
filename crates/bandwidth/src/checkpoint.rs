//! Reads the checkpoint of the kubelet's device manager, which lists the devices of each pod.
//!
//! Source: k8s.io/kubernetes, `pkg/kubelet/cm/devicemanager/checkpoint`. The kubelet replaces the
//! file as a whole (rename). So this module never reads an incomplete file, and need not verify the
//! checksum.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;
use cni::files::{Links, read_regular};
use serde::Deserialize;

/// Reads the checkpoint at `path`. Returns for each resource how many devices the pod with the UID
/// `pod` has.
///
/// # Errors
/// The file cannot be read or is not a checkpoint. The error says which configuration key to set.
pub(crate) fn read(path: &Path, pod: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    // The kubelet never creates a symbolic link in place of the file, so a link is refused.
    let read = || devices(&read_regular(path, Links::Refuse, LARGEST)?, pod);
    read().with_context(|| {
        format!(
            "read kubeletCheckpoint {} for podResources (set the key to the file \
             device-plugins/kubelet_internal_checkpoint below the kubelet's --root-dir; the kubelet \
             writes the file when the first device plugin registers)",
            path.display()
        )
    })
}

/// Returns for each resource how many different devices all containers of the pod with the UID
/// `pod` have together. A device counts once, even if an init container shares it with a later
/// container.
///
/// # Errors
/// `json` is not a checkpoint.
pub fn devices(json: &[u8], pod: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let checkpoint: Checkpoint<'_> = serde_json::from_slice(json)?;
    let entries = checkpoint.data.entries.unwrap_or_default();
    let mut devices = BTreeMap::<_, BTreeSet<_>>::new();
    for entry in entries.iter().filter(|it| it.pod == pod) {
        for id in entry.devices.lists().into_iter().flatten() {
            devices.entry(&entry.resource).or_default().insert(&id.0);
        }
    }
    let counts = devices.into_iter();
    Ok(counts
        .map(|(resource, ids)| (resource.to_string(), ids.len() as u64))
        .collect())
}

/// The part of the checkpoint that this module reads: the pods' devices, without the list of all
/// registered devices.
#[derive(Deserialize)]
struct Checkpoint<'a> {
    #[serde(rename = "Data", borrow)]
    data: Data<'a>,
}

#[derive(Deserialize)]
struct Data<'a> {
    /// One entry for each container and resource; `null` while no pod has a device.
    #[serde(rename = "PodDeviceEntries", borrow)]
    entries: Option<Vec<Entry<'a>>>,
}

/// The devices of one resource that a container has.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(rename = "PodUID", borrow)]
    pod: Cow<'a, str>,
    #[serde(rename = "ResourceName", borrow)]
    resource: Cow<'a, str>,
    #[serde(rename = "DeviceIDs", borrow)]
    devices: Ids<'a>,
}

/// IDs of devices.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected IDs of devices")]
enum Ids<'a> {
    /// One list, as Kubernetes before 1.20 writes it.
    Listed(#[serde(borrow)] Option<Vec<Id<'a>>>),
    /// A list for each NUMA node.
    OfNodes(#[serde(borrow)] BTreeMap<String, Option<Vec<Id<'a>>>>),
}

#[derive(Deserialize)]
struct Id<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Ids<'a> {
    fn lists(&self) -> Vec<&[Id<'a>]> {
        let lists: Vec<_> = match self {
            Self::Listed(list) => vec![list],
            Self::OfNodes(nodes) => nodes.values().collect(),
        };
        lists.into_iter().filter_map(Option::as_deref).collect()
    }
}

/// Maximum size of a checkpoint in bytes. A checkpoint of 10,000 devices has about 350,000 bytes.
const LARGEST: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn counts(checkpoint: &Value) -> Vec<(String, u64)> {
        let json = serde_json::to_vec(checkpoint).unwrap();
        devices(&json, "a").unwrap().into_iter().collect()
    }

    fn entry(pod: &str, container: &str, ids: &Value) -> Value {
        json!({
            "PodUID": pod, "ContainerName": container, "ResourceName": "example.org/egress-10mbit",
            "DeviceIDs": ids, "AllocResp": "CgA=",
        })
    }

    #[test]
    fn distinct_devices_of_the_pod_are_counted() {
        let entries = json!([
            entry("a", "init", &json!({"-1": ["1", "2"]})),
            entry("a", "app", &json!({"0": ["1"], "1": ["3", "4\u{e9}\""]})),
            entry("a", "old", &json!(["2", "5"])),
            entry("a", "none", &json!(null)),
            entry("a", "empty", &json!({"-1": null})),
            entry("b", "app", &json!({"-1": ["6"]})),
        ]);
        let registered = json!({"example.org/egress-10mbit": ["1", "2", "3"]});
        let checkpoint = json!({
            "Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered, "New": [{}]},
            "Checksum": 1, "Newer": null,
        });
        let expected = ("example.org/egress-10mbit".to_owned(), 5);
        assert_eq!(counts(&checkpoint), [expected]);
    }

    #[test]
    fn no_pod_has_devices_at_first() {
        let checkpoint =
            json!({"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": 1});
        assert_eq!(counts(&checkpoint), []);
    }

    #[test]
    fn what_is_no_checkpoint_is_refused() {
        for text in [
            "",
            "{}",
            "[]",
            "null",
            r#"{"Data":null}"#,
            r#"{"Data":{"PodDeviceEntries":{}}}"#,
            r#"{"Data":{"PodDeviceEntries":[{"PodUID":"a"}]}}"#,
            r#"{"Data":{"PodDeviceEntries":[]}} x"#,
            r#"{"Data":{"PodDeviceEntries":["#,
        ] {
            devices(text.as_bytes(), "a").unwrap_err();
        }
    }
}
