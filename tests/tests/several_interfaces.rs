//! Sandboxes with several interfaces of different plugins, as Multus makes them.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Sandbox, at_once};

/// What a network has in a sandbox: its interface, the plugins, and the result of ADD.
struct Part<'h> {
    interface: &'static str,
    plugins: Vec<Network<'h>>,
    result: Value,
}

impl<'h> Part<'h> {
    /// Runs ADD of the plugins.
    fn attach(interface: &'static str, plugins: &[Network<'h>], a: &Sandbox) -> Self {
        let mut part = Self {
            interface,
            plugins: plugins.to_vec(),
            result: Value::Null,
        };
        for network in plugins {
            part.result = part.call("ADD", network, a).ok();
        }
        part
    }

    fn call(&self, verb: &str, network: &Network<'_>, a: &Sandbox) -> tests::Invocation {
        let network = match &self.result {
            Value::Null => network.clone(),
            result => network.clone().with("prevResult", result.clone()),
        };
        network.on(verb, a).ifname(self.interface)
    }

    fn check(&self, a: &Sandbox) {
        for network in &self.plugins {
            self.call("CHECK", network, a).ok();
        }
    }

    fn detach(&self, a: &Sandbox) {
        for network in self.plugins.iter().rev() {
            self.call("DEL", network, a).ok();
        }
    }

    /// Runs GC of the network. The runtime lists these interfaces of the sandbox.
    fn collect(&self, a: &Sandbox, listed: &[&Self]) {
        let entry = |it: &&Self| json!({"containerID": a.name(), "ifname": it.interface});
        let listed: Vec<_> = listed.iter().map(entry).collect();
        for network in &self.plugins {
            let network = network.clone().with("cniVersion", "1.1.0");
            let network = network.with_key("cni.dev/valid-attachments", json!(listed));
            network.call("GC").ok();
        }
    }
}

/// Attaches a sandbox: the cluster's network first, then a macvlan and the host's card `ens5`, each
/// with policy routing, a macvlan on the first one, and a tap, in a VRF if the kernel has VRFs.
fn attach<'h>(host: &'h Host, a: &Sandbox) -> Vec<Part<'h>> {
    let subnet = |it: &str| json!([[{"subnet": it}]]);
    let pods = host.bridge_v4().with("ipam.ranges", subnet("10.9.0.0/24"));
    let pods = pods.with("isDefaultGateway", true);
    let routes = json!([{"dst": "0.0.0.0/0"}]);
    let lan = host.card().with("name", "lan").with("ipam.routes", routes);
    let rack = host.nic().with("name", "rack");
    let rack = rack.with("ipam.ranges", subnet("10.5.0.0/24"));
    let inner = host.card().with("name", "inner").without("ipam");
    let inner = inner.with("master", "net1").with("linkInContainer", true);
    let by_source = |name: &str| host.bandwidth().with("type", "sbr").with("name", name);
    let machines = host.tap().with("name", "machines");
    let machines = machines.with("ipam.ranges", subnet("10.8.0.0/24"));
    let apart = host.bandwidth().with("type", "vrf");
    let apart = apart.with("name", "machines").with("vrfname", "blue");
    let apart = has_vrfs(a).then_some(apart);
    let machines = [machines].into_iter().chain(apart).collect();
    let tuned = host.bandwidth().with("type", "tuning");
    let tuned = tuned.with("sysctl", json!({"net.ipv4.conf.IFNAME.arp_filter": "1"}));
    [
        ("eth0", vec![pods, tuned]),
        ("net1", vec![lan, by_source("lan")]),
        ("net2", vec![rack, by_source("rack")]),
        ("net3", vec![inner]),
        ("net4", machines),
    ]
    .map(|(interface, plugins)| Part::attach(interface, &plugins, a))
    .into()
}

fn has_vrfs(a: &Sandbox) -> bool {
    let words = "link add trial type vrf table 99".split(' ');
    let mut ip = Command::new("ip");
    let ip = ip.args(words).stderr(Stdio::null());
    let is_made = a.enter(|| ip.status()).unwrap().success();
    if is_made {
        a.ip("link delete trial");
    }
    is_made
}

/// The address of each interface's network on the host.
const GATEWAYS: [(&str, &str); 3] = [
    ("eth0", "10.9.0.1"),
    ("net1", "10.1.0.1"),
    ("net2", "10.5.0.1"),
];

/// Checks the interfaces `left`: each passes CHECK and reaches its network.
fn expect_left(a: &Sandbox, left: &[&Part<'_>]) {
    let has = |interface| left.iter().any(|it| it.interface == interface);
    for part in left {
        // The kernel makes the inner link one of the card, so it outlives its master; but its
        // master's name is compared.
        if part.interface != "net3" || has("net1") {
            part.check(a);
        }
        assert!(a.has_link(part.interface));
    }
    for (interface, gateway) in GATEWAYS.iter().filter(|it| has(it.0)) {
        let source = a.addresses(interface).remove(0);
        let source = source.split('/').next().unwrap();
        assert!(a.pings_from(source, gateway), "{interface} {gateway}");
    }
    let vrf = left
        .iter()
        .filter(|it| it.plugins.len() == 2 && it.interface == "net4");
    let links = a.links();
    assert_eq!(links.len(), left.len() + vrf.count() + 1, "{links:?}");
}

/// Creates what all attachments share.
fn prepare(host: &Host) {
    host.card();
    host.nic();
    host.ip("address delete 10.1.0.1/24 dev switch");
    host.ip("address add 10.5.0.1/24 dev switch");
    let first = host.sandbox("first");
    for part in attach(host, &first) {
        part.detach(&first);
    }
}

fn expect_nothing_left(host: &Host, a: &Sandbox) {
    let leases = ["pods", "lan", "rack", "machines"].map(|it| host.leases(it).len());
    assert_eq!(leases, [0; 4]);
    let records = ["witness", "host-device", "sbr", "tuning", "vrf"].map(|it| {
        let directory = Path::new("/run/cni").join(it);
        directory.read_dir().map_or(0, Iterator::count)
    });
    assert_eq!(records, [0; 5]);
    // The kernel adds a rule with the first VRF, and keeps it.
    let rules = a.ip("rule");
    let rules = rules.lines().filter(|it| !it.contains("l3mdev-table"));
    assert_eq!(rules.count(), 3, "{}", a.ip("rule"));
}

#[test]
fn interfaces_go_in_any_order_while_each_network_is_collected() {
    let host = Host::new();
    prepare(&host);
    let before = host.snapshot();
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]] {
        let a = host.sandbox(&format!("a{}", order[0]));
        let parts = attach(&host, &a);
        for (done, place) in order.iter().enumerate() {
            let left: Vec<_> = order[done + 1..].iter().map(|it| &parts[*it]).collect();
            // The first one is detached, the other networks are collected at the same time.
            at_once(&parts, |part| match part.interface {
                interface if interface == parts[*place].interface => part.detach(&a),
                _ => part.collect(&a, &left),
            });
            expect_left(&a, &left);
        }
        host.snapshot().assert_same_as(&before);
        expect_nothing_left(&host, &a);
    }
}

#[test]
fn gc_of_one_network_leaves_the_others_of_the_sandbox() {
    let host = Host::new();
    prepare(&host);
    let before = host.snapshot();
    let a = host.sandbox("a");
    let parts = attach(&host, &a);
    let all: Vec<_> = parts.iter().collect();
    for part in &parts {
        part.collect(&a, &all);
    }
    expect_left(&a, &all);
    for (done, part) in parts.iter().enumerate() {
        part.collect(&a, &[]);
        expect_left(&a, &all[done + 1..]);
    }
    host.snapshot().assert_same_as(&before);
    expect_nothing_left(&host, &a);
}
