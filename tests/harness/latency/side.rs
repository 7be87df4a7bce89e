//! The sides of the comparison: whose plugins attach and limit a pod.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::Limit;
use crate::{Host, Invocation, Place as _, REFERENCE, Sandbox};

/// The plugins of a directory.
#[derive(Debug, Clone)]
pub struct Side {
    /// Name in the table.
    pub name: String,
    directory: PathBuf,
    limits: Limits,
}

/// What a side asks `bandwidth` for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limits {
    /// Nothing.
    None,
    /// A rate, without a burst.
    Rate,
    /// A rate, with the burst that ours derives from it: the reference needs one.
    RateAndBurst,
}

/// An attached pod.
pub(super) struct Pod {
    pub(super) sandbox: Sandbox,
    pub(super) address: String,
    /// The calls that remove it, last plugin first.
    removal: Vec<Invocation>,
}

impl Side {
    /// Without limits; the bridge is that of the directory.
    pub fn control(directory: &Path) -> Self {
        Self::new("control", directory, Limits::None)
    }

    /// Our plugins.
    pub fn ours(directory: &Path) -> Self {
        Self::new("ours", directory, Limits::Rate)
    }

    /// The Go plugins.
    pub fn reference(name: &str, directory: &Path) -> Self {
        Self::new(name, directory, Limits::RateAndBurst)
    }

    /// Returns the control, the plugins under test and the reference.
    pub fn under_test() -> Vec<Self> {
        let plugin = crate::host::under_test("bandwidth");
        let directory = plugin.parent().unwrap();
        let reference = Self::reference("reference", Path::new(REFERENCE));
        vec![Self::control(directory), Self::ours(directory), reference]
    }

    fn new(name: &str, directory: &Path, limits: Limits) -> Self {
        Self {
            name: name.into(),
            directory: directory.into(),
            limits,
        }
    }

    pub(super) fn limit(&self) -> Limit {
        match self.limits {
            Limits::None => Limit::None,
            Limits::Rate | Limits::RateAndBurst => Limit::Set,
        }
    }

    /// Attaches a pod to the side's own bridge and limits both directions to `rate`.
    pub(super) fn attach(&self, host: &Host, rate: u64) -> Pod {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let sandbox = host.sandbox(&format!("latency-{number}"));
        // Announcements of IPv6 would count as traffic.
        sandbox.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1");
        let mut result = Value::Null;
        let mut removal = Vec::new();
        for mut plugin in self.chain(rate) {
            plugin["prevResult"] = result;
            let program = self.directory.join(plugin["type"].as_str().unwrap());
            let call = Invocation::of(&program, &self.directory).sandbox(&sandbox);
            result = call.clone().verb("ADD").config(&plugin).ok();
            plugin["prevResult"] = result.clone();
            removal.insert(0, call.verb("DEL").config(&plugin));
        }
        let address = result["ips"][0]["address"].as_str().unwrap();
        let address = address.split('/').next().unwrap().to_owned();
        Pod {
            sandbox,
            address,
            removal,
        }
    }

    fn chain(&self, rate: u64) -> Vec<Value> {
        let (network, subnet) = match self.limits {
            Limits::None => ("control", "10.201.0.0/16"),
            Limits::Rate => ("ours", "10.202.0.0/16"),
            // Two references may run side by side.
            Limits::RateAndBurst if self.name == "reference" => ("ref", "10.203.0.0/16"),
            Limits::RateAndBurst => ("ref2", "10.204.0.0/16"),
        };
        let bridge = json!({
            "cniVersion": "1.0.0", "name": network, "type": "bridge",
            "bridge": format!("lat-{network}"), "isGateway": true,
            "ipam": {
                "type": "host-local", "dataDir": format!("/run/latency-{network}"),
                "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}],
            },
        });
        let mut limits = json!({"ingressRate": rate, "egressRate": rate});
        match self.limits {
            Limits::None => return vec![bridge],
            Limits::Rate => {}
            Limits::RateAndBurst => {
                // 50 ms, at least four MTUs.
                let burst = (rate / 20).max(4 * 1500 * 8);
                limits["ingressBurst"] = burst.into();
                limits["egressBurst"] = burst.into();
            }
        }
        let bandwidth = json!({
            "cniVersion": "1.0.0", "name": network, "type": "bandwidth",
            "runtimeConfig": {"bandwidth": limits},
        });
        vec![bridge, bandwidth]
    }
}

impl Pod {
    /// Removes it as a runtime does.
    pub(super) fn detach(self) {
        for call in self.removal {
            call.ok();
        }
        self.sandbox.remove();
    }
}
