//! Containers with limits.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::place::Place as _;
use crate::{Host, Invocation, Network, Sandbox, Tool};

/// A container on the bridge whose runtime asks for limits, which `cnitool limit` changes.
#[derive(Debug)]
pub struct Limited<'h> {
    host: &'h Host,
    /// cnitool with the network `pods`.
    pub tool: Tool<'h>,
    /// The container.
    pub a: Sandbox,
    /// The result of its last ADD.
    pub result: Value,
}

impl<'h> Limited<'h> {
    /// Attaches the container with these values of capabilities.
    pub fn new(host: &'h Host, capabilities: &Value) -> Self {
        let tool = host.tool();
        let bridge = host.bridge_v4().with("isDefaultGateway", true);
        let declared = json!({"bandwidth": true, "io.kubernetes.cri.pod-annotations": true});
        let bandwidth = json!({"type": "bandwidth", "capabilities": declared});
        tool.configure("pods", &[bridge.config().clone(), bandwidth]);
        let mut limited = Self {
            host,
            tool,
            a: host.sandbox("a"),
            result: Value::Null,
        };
        limited.add(capabilities);
        limited
    }

    /// Attaches the container again.
    pub fn add(&mut self, capabilities: &Value) {
        let add = self.tool.on("add", "pods", &self.a);
        self.result = add.env("CAP_ARGS", capabilities.to_string()).ok();
    }

    /// Returns the file of the cached entry.
    pub fn entry(&self) -> PathBuf {
        let file = self.tool.results().read_dir().unwrap().next().unwrap();
        file.unwrap().path()
    }

    /// Returns the content of the cached entry.
    pub fn cached(&self) -> Value {
        serde_json::from_slice(&fs::read(self.entry()).unwrap()).unwrap()
    }

    /// Returns a run of `cnitool limit` with these options.
    pub fn limit(&self, words: &[&str]) -> Invocation {
        let entry = self.cached();
        let container = entry["containerId"].as_str().unwrap();
        let words = ["limit", "pods", container]
            .into_iter()
            .chain(words.iter().copied());
        self.tool.run(&words.collect::<Vec<_>>())
    }

    /// Returns the rates of the root qdiscs in bytes per second: towards the container and from it.
    pub fn rates(&self) -> [Option<u64>; 2] {
        [self.host.limit(self.link()), self.a.limit("eth0")].map(|it| it.map(|it| it.0))
    }

    /// Returns the name of the host's end.
    pub fn link(&self) -> &str {
        self.result["interfaces"][1]["name"].as_str().unwrap()
    }

    /// Returns the element of the backstop, as nft shows it.
    pub fn backstop(&self) -> String {
        let listed = self.host.run("nft", &["list", "ruleset"]);
        let mut lines = listed.lines().filter(|it| it.contains("cni:pods/"));
        lines.next().unwrap_or_default().to_owned()
    }

    /// Checks the rates, and that CHECK and RELOAD agree with them.
    #[track_caller]
    pub fn expect(&self, rates: [Option<u64>; 2]) {
        assert_eq!(self.rates(), rates);
        self.tool.on("check", "pods", &self.a).ok();
        self.tool.run(&["reload"]).ok();
        assert_eq!(self.rates(), rates);
        self.tool.on("check", "pods", &self.a).ok();
    }

    /// Checks that nothing is left after DEL.
    #[track_caller]
    pub fn expect_nothing_after_del(&self) {
        self.tool.on("del", "pods", &self.a).ok();
        assert_eq!(self.backstop(), "");
        assert!(!record("a").exists());
    }
}

/// A container on the bridge, and another host that reaches it through this one.
#[derive(Debug)]
pub struct RoutedContainer {
    /// The host between them.
    pub host: Host,
    /// The container, 10.1.0.2.
    pub a: Sandbox,
    /// The other host, 192.0.2.2.
    pub outside: Sandbox,
    /// The result of the bridge.
    pub result: Value,
}

impl RoutedContainer {
    /// Attaches the container to the bridge, without limits.
    pub fn new() -> Self {
        let host = Host::new();
        let (outside, a) = (host.outside(), host.sandbox("a"));
        outside.ip("route add default via 192.0.2.1");
        let routes = json!([{"dst": "0.0.0.0/0"}]);
        let result = host.bridge_v4().with("ipam.routes", routes).add(&a);
        Self {
            host,
            a,
            outside,
            result,
        }
    }

    /// Returns limits of this rate in both directions.
    pub fn limited(&self, rate: u64) -> Network<'_> {
        let limits = json!({"ingressRate": rate, "egressRate": rate});
        let network = self.host.bandwidth();
        let network = network.with("prevResult", self.result.clone());
        network.with("runtimeConfig.bandwidth", limits)
    }

    /// Returns the name of the host's end.
    pub fn host_link(&self) -> &str {
        self.result["interfaces"][1]["name"].as_str().unwrap()
    }
}

impl Default for RoutedContainer {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the record of the container with this name, on the network `pods`.
pub fn record(container: &str) -> PathBuf {
    PathBuf::from(format!("/run/cni/bandwidth/cni:pods:{container}:eth0"))
}

/// Returns limits that a runtime asks for.
pub fn asked(ingress: u64, egress: u64) -> Value {
    json!({"bandwidth": {"ingressRate": ingress, "egressRate": egress}})
}
