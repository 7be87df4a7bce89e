//! Reads the checkpoint of the kubelet's device manager, which lists the devices of each pod.
//!
//! Source: k8s.io/kubernetes, `pkg/kubelet/cm/devicemanager/checkpoint`. The kubelet replaces the
//! file as a whole (rename). So this module never reads an incomplete file, and need not verify the
//! checksum.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::Context as _;
use cni::files::{Links, read_regular};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

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
        for id in &entry.devices.0 {
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

/// IDs of devices, from a list for each NUMA node. Kubernetes before 1.20 writes only one list.
struct Ids<'a>(Vec<Id<'a>>);

#[derive(Deserialize)]
struct Id<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Ids<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfEveryNode).map(Self)
    }
}

struct OfEveryNode;

impl<'de> Visitor<'de> for OfEveryNode {
    type Value = Vec<Id<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IDs of devices")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element()? {
            ids.push(id);
        }
        Ok(ids)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut nodes: A) -> Result<Self::Value, A::Error> {
        let mut ids = Vec::new();
        while let Some((_, of_node)) = nodes.next_entry::<IgnoredAny, Option<Vec<_>>>()? {
            ids.extend(of_node.unwrap_or_default());
        }
        Ok(ids)
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
