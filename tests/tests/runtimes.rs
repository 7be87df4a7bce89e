//! Replays recorded calls of real runtimes for real pods, one per line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use tests::traffic::{tcp_by_port, udp_by_port};
use tests::{Host, Invocation, Place as _, Sandbox};

/// A recorded call.
#[derive(Debug, Clone)]
struct Call {
    plugin: String,
    environment: BTreeMap<String, String>,
    stdin: Value,
}

impl Call {
    fn variable(&self, name: &str) -> &str {
        self.environment.get(name).map_or("", String::as_str)
    }

    fn verb(&self) -> &str {
        self.variable("CNI_COMMAND")
    }

    /// Returns the network's name; VERSION has none.
    fn network(&self) -> &str {
        self.stdin["name"].as_str().unwrap_or_default()
    }

    /// Returns the runtime's call of a portmap behind the plugin, with the part that it sends to
    /// all plugins of the chain.
    fn to_portmap(&self, result: &Value) -> Self {
        let stdin = &self.stdin;
        let mut call = Self {
            plugin: "portmap".to_owned(),
            environment: self.environment.clone(),
            stdin: json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        };
        for key in ["cniVersion", "name"] {
            call.stdin[key] = stdin[key].clone();
        }
        let mappings = stdin["runtimeConfig"]["portMappings"].clone();
        call.stdin["runtimeConfig"] = json!({"portMappings": mappings});
        if self.verb() == "ADD" || stdin["prevResult"].is_object() {
            call.stdin["prevResult"] = result.clone();
        }
        call
    }

    /// Returns the path of the runtime's cache entry.
    fn cache(&self) -> PathBuf {
        let container = self.variable("CNI_CONTAINERID");
        Path::new("/var/lib/cni/results").join(format!("{}-{container}-eth0", self.network()))
    }

    /// Returns the cache entry of the runtime's libcni for an ADD with this result. Old versions
    /// store no namespace.
    fn cached(&self, sandbox: &Sandbox, result: &Value) -> Value {
        let mut bridge = self.stdin.clone();
        let keys = bridge.as_object_mut().unwrap();
        keys.retain(|key, _| !["name", "cniVersion", "runtimeConfig"].contains(&key.as_str()));
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let mut list = json!({"plugins": [bridge, portmap]});
        for key in ["cniVersion", "name"] {
            list[key] = self.stdin[key].clone();
        }
        let pairs = self.variable("CNI_ARGS").split(';');
        let pairs: Vec<_> = pairs.filter_map(|pair| pair.split_once('=')).collect();
        let mut entry = json!({
            "kind": "cniCacheV1",
            "containerId": self.variable("CNI_CONTAINERID"),
            "config": BASE64_STANDARD.encode(list.to_string()),
            "ifName": self.variable("CNI_IFNAME"),
            "networkName": self.network(),
            "cniArgs": pairs,
            "capabilityArgs": self.stdin["runtimeConfig"],
            "result": result,
        });
        if self.stdin["cniVersion"] == "1.1.0" {
            entry["netns"] = json!(sandbox.path());
        }
        entry
    }

    /// Returns the recorded call with the test's sandbox and lease directory.
    fn invocation(&self, host: &Host, sandbox: &Sandbox) -> Invocation {
        let mut stdin = self.stdin.clone();
        if stdin["ipam"].is_object() {
            stdin["ipam"]["dataDir"] = json!(host.lease_dir());
        }
        let mut invocation = host.plugin(&self.plugin).config(&stdin);
        for (name, value) in &self.environment {
            invocation = match name.as_str() {
                "CNI_PATH" => invocation,
                "CNI_NETNS" if value.starts_with('/') => invocation.netns(sandbox.path()),
                _ => invocation.env(name, value),
            };
        }
        invocation
    }
}

fn recorded(runtime: &str) -> Vec<Call> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let text = fs::read_to_string(directory.join(format!("{runtime}.jsonl"))).unwrap();
    let calls = text.lines().map(|line| {
        let call: Value = serde_json::from_str(line).unwrap();
        let environment = call["env"].as_object().unwrap().iter();
        let environment =
            environment.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
        Call {
            plugin: call["plugin"].as_str().unwrap().to_owned(),
            environment: environment.collect(),
            stdin: call["stdin"].clone(),
        }
    });
    calls.collect()
}

/// A host for the replay, with the state of earlier calls.
struct Replay {
    host: Host,
    sandboxes: BTreeMap<String, Sandbox>,
    /// Result of the last ADD of a plugin for a container.
    results: BTreeMap<(String, String), Value>,
}

impl Replay {
    fn new() -> Self {
        let host = Host::new();
        // The host has the address that the recorded port mappings use.
        host.outside();
        Self {
            host,
            sandboxes: BTreeMap::new(),
            results: BTreeMap::new(),
        }
    }

    fn run(&mut self, call: &Call) {
        let mut call = call.clone();
        let container = call.variable("CNI_CONTAINERID").to_owned();
        let key = (call.plugin.clone(), container.clone());
        if call.stdin["prevResult"].is_object()
            && let Some(result) = self.previous(&call)
        {
            call.stdin["prevResult"] = result.clone();
        }
        let name = format!("netns-{container}");
        let sandboxes = self.sandboxes.entry(name.clone());
        let sandbox = sandboxes.or_insert_with(|| self.host.sandbox(&name));
        if call.plugin == "bridge" && call.verb() == "DEL" {
            let known = self.results.get(&key).unwrap_or(&Value::Null);
            let portmap = call.to_portmap(known).invocation(&self.host, sandbox);
            assert_eq!(portmap.ok(), Value::Null);
        }
        let outcome = call.invocation(&self.host, sandbox).run();
        let result = outcome.ok();
        match (call.verb(), call.plugin.as_str()) {
            ("ADD", "bridge") => {
                attached(&self.host, sandbox, &call);
                let portmap = call.to_portmap(&result);
                assert_eq!(portmap.invocation(&self.host, sandbox).ok(), result);
                forwarded(&self.host, sandbox, &call);
                reloaded(&self.host, sandbox, &call, &result);
            }
            ("DEL", "bridge") => detached(&self.host, sandbox, &call),
            ("ADD", "bandwidth") => limited(&self.host, sandbox, (&call, &result)),
            ("DEL", "bandwidth") => assert!(!has_backstop(&self.host, &call)),
            ("DEL", "host-local") => assert!(leases(&self.host, &call).is_empty()),
            ("VERSION", _) => assert!(result["supportedVersions"].is_array()),
            _ => {}
        }
        if call.verb() == "ADD" {
            assert_eq!(result["cniVersion"], call.stdin["cniVersion"]);
            self.results.insert(key, result);
        }
    }

    /// Returns the result for the call: that plugin's own ADD or, for an ADD, the ADD of the
    /// previous plugin.
    fn previous(&self, call: &Call) -> Option<&Value> {
        let result_of = |plugin: &str| {
            let container = call.variable("CNI_CONTAINERID").to_owned();
            self.results.get(&(plugin.to_owned(), container))
        };
        match (call.verb(), call.plugin.as_str()) {
            ("ADD", "bandwidth") => result_of("bridge"),
            (_, plugin) => result_of(plugin),
        }
    }
}

/// Checks the limits: recorded pods have 10 Mbit/s towards them and 20 from them without a
/// configured burst, or no limit.
fn limited(host: &Host, sandbox: &Sandbox, (call, result): (&Call, &Value)) {
    for key in ["interfaces", "ips", "routes"] {
        assert_eq!(result[key], call.stdin["prevResult"][key]);
    }
    let is_asked = call.stdin["runtimeConfig"]["bandwidth"].is_object();
    assert_eq!(has_backstop(host, call), is_asked);
    if !is_asked {
        return;
    }
    let pair = result["interfaces"][1]["name"].as_str().unwrap();
    let limits = [host.limit(pair), sandbox.limit("eth0")];
    let asked = [(1_250_000, 62_500), (2_500_000, 125_000)];
    assert_eq!(limits, asked.map(Some));
}

/// Returns whether the call's container has a second egress limit in `nf_tables`.
fn has_backstop(host: &Host, call: &Call) -> bool {
    let container = call.variable("CNI_CONTAINERID");
    let owner = format!("cni:{}/{container}/", call.network());
    let rules = host.rules_from("bridge cni-bandwidth");
    rules.contains(&owner)
}

/// Checks that the pod's link works and matches the call.
fn attached(host: &Host, sandbox: &Sandbox, call: &Call) {
    let addresses = sandbox.addresses("eth0");
    assert_eq!(
        addresses.len(),
        call.stdin["ipam"]["ranges"].as_array().unwrap().len()
    );
    for gateway in sandbox.default_gateways() {
        assert!(sandbox.pings(&gateway), "{gateway}: {call:#?}");
    }
    let masquerades = rules(host).contains(&format!("/{}/eth0", call.variable("CNI_CONTAINERID")));
    assert_eq!(masquerades, call.stdin["ipMasq"] == true);
    let bridge = call.stdin["bridge"].as_str().unwrap();
    assert!(!host.addresses(bridge).is_empty());
    let args = call
        .variable("CNI_ARGS")
        .split(';')
        .filter_map(|pair| pair.split_once('='));
    for (key, value) in args {
        match key {
            "MAC" => assert_eq!(sandbox.mac("eth0"), value),
            "IP" => assert!(addresses[0].starts_with(&format!("{value}/"))),
            _ => {}
        }
    }
    let asked = call.stdin["runtimeConfig"]["ips"].as_array();
    for ip in asked.into_iter().flatten() {
        let prefix = format!("{}/", ip.as_str().unwrap());
        assert!(
            addresses.iter().any(|address| address.starts_with(&prefix)),
            "{ip}"
        );
    }
}

/// Checks that the call's host ports are forwarded to the pod.
fn forwarded(host: &Host, sandbox: &Sandbox, call: &Call) {
    let mappings = call.stdin["runtimeConfig"]["portMappings"].as_array();
    for mapping in mappings.into_iter().flatten() {
        let (port, to) = (&mapping["HostPort"], mapping["ContainerPort"].as_u64());
        let address = match mapping["HostIP"].as_str().unwrap() {
            "" => "127.0.0.1",
            address => address,
        };
        let target = format!("{address}:{port}");
        let server = (sandbox, u16::try_from(to.unwrap()).unwrap());
        let reached = match mapping["Protocol"].as_str().unwrap() {
            "udp" => udp_by_port(host, &target, server),
            _ => tcp_by_port(host, &target, server),
        };
        assert!(reached.is_some(), "{mapping}");
    }
}

/// Checks that the runtime's cache suffices to restore the pod's firewall elements.
fn reloaded(host: &Host, sandbox: &Sandbox, call: &Call, result: &Value) {
    fs::create_dir_all("/var/lib/cni/results").unwrap();
    fs::write(call.cache(), call.cached(sandbox, result).to_string()).unwrap();
    let before = rules(host).matches("cni:").count();
    host.run("nft", &["flush", "ruleset"]);
    host.plugin("cnitool").argument("reload").ok();
    assert_eq!(rules(host).matches("cni:").count(), before);
    attached(host, sandbox, call);
    forwarded(host, sandbox, call);
}

fn detached(host: &Host, sandbox: &Sandbox, call: &Call) {
    assert!(!sandbox.has_link("eth0"));
    assert!(!host.links().iter().any(|link| link.starts_with("veth")));
    assert!(leases(host, call).is_empty());
    assert!(!rules(host).contains("cni:"));
    // A runtime calls DEL more than once.
    fs::remove_file(call.cache()).ok();
}

fn rules(host: &Host) -> String {
    host.run("nft", &["list", "ruleset"])
}

/// Returns the leases of the call's container.
fn leases(host: &Host, call: &Call) -> Vec<String> {
    let holder = call.variable("CNI_CONTAINERID");
    let leases = host.leases(call.network());
    leases
        .into_values()
        .filter(|lease| lease.starts_with(holder))
        .collect()
}

/// Replays a runtime's calls of these plugins. Each network gets its own host, because some were
/// recorded in sequence and share a subnet.
fn replay(runtime: &str, plugins: &[&str]) {
    let mut calls = recorded(runtime);
    calls.retain(|call| plugins.contains(&call.plugin.as_str()));
    let networks: BTreeSet<_> = calls.iter().map(Call::network).collect();
    for network in networks {
        let mut replay = Replay::new();
        let of_network = calls.iter().filter(|call| call.network() == network);
        of_network.for_each(|call| replay.run(call));
    }
}

const RUNTIMES: [&str; 4] = [
    "containerd-1.6",
    "containerd-2.3",
    "cri-o-1.36",
    "podman-4.3",
];

#[test]
fn calls_of_containerd_1_6() {
    replay("containerd-1.6", &["bridge", "loopback", "bandwidth"]);
}

#[test]
fn calls_of_containerd_2_3() {
    replay("containerd-2.3", &["bridge", "loopback", "bandwidth"]);
}

#[test]
fn calls_of_cri_o_1_36() {
    replay("cri-o-1.36", &["bridge", "loopback", "bandwidth"]);
}

#[test]
fn calls_of_podman_4_3() {
    replay("podman-4.3", &["bridge"]);
}

#[test]
fn calls_that_the_delegate_got_from_the_references_bridge() {
    for runtime in RUNTIMES {
        replay(runtime, &["host-local"]);
    }
}
