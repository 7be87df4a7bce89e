//! Pods that the kubelet allocates devices of bandwidth to.

use std::fs;

use serde_json::{Value, json};

use crate::limited::record;
use crate::{Checkpoint, Host, Invocation, Network, Place as _, Sandbox};

/// A pod on the bridge, for bandwidth behind it. Its UID is `uid-` and the sandbox's name.
#[derive(Debug)]
pub struct Pod<'h> {
    host: &'h Host,
    /// The sandbox.
    pub sandbox: Sandbox,
    /// The bridge's result.
    pub joined: Value,
}

impl<'h> Pod<'h> {
    /// Attaches a sandbox to the bridge.
    pub fn new(host: &'h Host, name: &str) -> Self {
        let sandbox = host.sandbox(name);
        let routes = json!([{"dst": "0.0.0.0/0"}]);
        let joined = host.bridge_v4().with("ipam.routes", routes).add(&sandbox);
        Self {
            host,
            sandbox,
            joined,
        }
    }

    /// Returns bandwidth with `podResources` for all resources.
    pub fn network(&self) -> Network<'h> {
        let network = self.host.bandwidth().with("podResources", true);
        network.with("prevResult", self.joined.clone())
    }

    /// Returns bandwidth with a rate of the operator for both directions.
    pub fn by_default(&self, megabits: u64) -> Network<'h> {
        let network = self.network().with("ingressRate", megabits * 1_000_000);
        network.with("egressRate", megabits * 1_000_000)
    }

    /// Returns the kubelet's call of ADD.
    pub fn call(&self, network: &Network<'_>) -> Invocation {
        let uid = format!("IgnoreUnknown=1;K8S_POD_UID=uid-{}", self.sandbox.name());
        network.on("ADD", &self.sandbox).args(&uid)
    }

    /// Runs ADD, and CHECK with its result. Returns the result.
    #[track_caller]
    pub fn add(&self, network: &Network<'_>) -> Value {
        let result = self.call(network).ok();
        network.check(&self.sandbox, &result).ok();
        result
    }

    /// Returns the Mbit/s towards the pod and from it; 0 is no limit.
    pub fn limits(&self) -> [u64; 2] {
        let host_link = self.joined["interfaces"][1]["name"].as_str().unwrap();
        let limits = [self.host.limit(host_link), self.sandbox.limit("eth0")];
        limits.map(|it| it.map_or(0, |(rate, _)| rate * 8 / 1_000_000))
    }

    /// Returns the text of the pod's record.
    pub fn record(&self) -> Option<String> {
        fs::read_to_string(record(self.sandbox.name())).ok()
    }
}

/// A resource of 10 Mbit/s towards a pod.
pub const INGRESS: &str = "example.org/ingress-10mbit";
/// A resource of 5 Mbit/s from a pod.
pub const EGRESS: &str = "example.org/egress-5mbit";

/// Returns the checkpoint of a node where pod `a` has 20 Mbit/s towards it and 15 from it.
pub fn given() -> Checkpoint {
    let checkpoint = Checkpoint::new().give("uid-a", INGRESS, &["i1", "i2"]);
    checkpoint.give("uid-a", EGRESS, &["e1", "e2", "e3"])
}
