//! The kubelet's list of the devices that pods have.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// The content of the kubelet's checkpoint, as of Kubernetes 1.20 and later.
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    entries: Vec<Value>,
    registered: usize,
}

impl Checkpoint {
    /// The kubelet's default path of the file.
    pub const PATH: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

    /// Returns the checkpoint of a node whose pods have no devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds devices of a resource in a container of the pod with the UID `pod`.
    pub fn give(mut self, pod: &str, resource: &str, ids: &[&str]) -> Self {
        let name = format!("container-{}", self.entries.len());
        self.entries.push(json!({
            "PodUID": pod, "ContainerName": name, "ResourceName": resource,
            "DeviceIDs": {"-1": ids}, "AllocResp": "CgA=",
        }));
        self
    }

    /// Registers this number of devices.
    pub fn register(mut self, count: usize) -> Self {
        self.registered = count;
        self
    }

    /// Returns the file's content.
    pub fn json(&self) -> Value {
        let ids: Vec<_> = (0..self.registered)
            .map(|it| format!("example.org-egress-10mbit-{it:05}"))
            .collect();
        let entries = Some(&self.entries).filter(|it| !it.is_empty());
        json!({
            "Data": {
                "PodDeviceEntries": entries,
                "RegisteredDevices": {"example.org/egress-10mbit": ids},
            },
            "Checksum": 2_856_012_917_u64,
        })
    }

    /// Writes the file at its default path like the kubelet: replaces it as a whole.
    pub fn write(&self) {
        let path = Path::new(Self::PATH);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = path.with_extension("new");
        fs::write(&new, self.json().to_string()).unwrap();
        fs::rename(&new, path).unwrap();
    }
}
