//! Whole chains: everything that a pod may get (bridge with ipMasq and host-local, two host ports,
//! and limits in both directions), and podman's default network with the same ports.

use std::time::Duration;

use serde_json::{Value, json};
use tests::{Host, Place as _, Sandbox};

use crate::report::Report;
use crate::timing::{Call, Side, in_turns};

/// Times everything that a pod may get.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    in_turns(&mut sides, rounds, |side, number| {
        let pod = host.sandbox(&format!("chain-{}-{number}", side.name));
        let chain = Chain::new(side, 0);
        round(side, &pod, chain);
    });
    report.times(&format!("the chain, {rounds} rounds in turns"), &sides);
}

/// Times podman's default network on a host that forwards nothing else.
pub fn run_podman(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    host.run("iptables-nft", &["-P", "FORWARD", "DROP"]);
    in_turns(&mut sides, rounds, |side, number| {
        let pod = host.sandbox(&format!("podman-{}-{number}", side.name));
        let chain = Chain::podman(side);
        round(side, &pod, chain);
    });
    host.run("iptables-nft", &["-P", "FORWARD", "ACCEPT"]);
    report.times(&format!("podman's chain, {rounds} rounds in turns"), &sides);
}

/// Times ADD, CHECK and DEL of a chain, and of each plugin in it.
fn round(side: &mut Side, pod: &Sandbox, mut chain: Chain) {
    // CHECK of Debian's portmap 1.1.1 does not find the rules of its ADD.
    let verbs: &[_] = match side.name {
        "ours" => &["ADD", "CHECK", "DEL"],
        _ => &["ADD", "DEL"],
    };
    for verb in verbs {
        let mut whole = Duration::ZERO;
        chain.walk(verb, |plugin, request| {
            let (output, time) = side.run(&Call::of(pod, plugin, verb), request);
            side.note(&format!("{plugin} {verb}"), time);
            whole += time;
            output
        });
        side.note(&format!("chain {verb}"), whole);
    }
}

/// A list of plugins, run as a runtime does.
pub struct Chain {
    plugins: Vec<Value>,
    /// Result of the last ADD.
    result: Value,
}

impl Chain {
    /// Creates a chain on the side's own bridge; `number` determines the pod's host ports.
    pub fn new(side: &Side, number: u16) -> Self {
        let rate = 100_000_000;
        let limits = json!({
            "ingressRate": rate, "ingressBurst": rate, "egressRate": rate, "egressBurst": rate,
        });
        Self::of(
            side,
            vec![
                bridge(side),
                portmap(number),
                json!({"type": "bandwidth", "runtimeConfig": {"bandwidth": limits}}),
            ],
        )
    }

    /// Creates the plugins of podman's default network.
    fn podman(side: &Side) -> Self {
        let mut bridge = bridge(side);
        bridge["hairpinMode"] = true.into();
        let [firewall, tuning] = ["firewall", "tuning"].map(|plugin| json!({"type": plugin}));
        Self::of(side, vec![bridge, portmap(0), firewall, tuning])
    }

    fn of(side: &Side, plugins: Vec<Value>) -> Self {
        Self {
            plugins: plugins.into_iter().map(|it| named(it, side)).collect(),
            result: Value::Null,
        }
    }

    /// Calls `send` with `verb` for every plugin, for DEL from the last to the first.
    pub fn walk(&mut self, verb: &str, mut send: impl FnMut(&str, &Value) -> Vec<u8>) {
        let mut plugins = self.plugins.clone();
        if verb == "DEL" {
            plugins.reverse();
        }
        for mut request in plugins {
            if !self.result.is_null() {
                request["prevResult"] = self.result.clone();
            }
            let output = send(request["type"].as_str().unwrap(), &request);
            if verb == "ADD" {
                self.result = serde_json::from_slice(&output).unwrap();
            }
        }
    }
}

fn bridge(side: &Side) -> Value {
    let subnet = match side.name {
        "ours" => "10.204.0.0/16",
        _ => "10.205.0.0/16",
    };
    json!({
        "type": "bridge",
        "bridge": format!("chain-{}", &side.name[..4]),
        "isGateway": true,
        "ipMasq": true,
        "ipam": {
            "type": "host-local",
            "dataDir": format!("/run/chain-{}", side.name),
            "ranges": [[{"subnet": subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}

fn portmap(number: u16) -> Value {
    let ports = [(80, 20_000), (443, 40_000)].map(|(container, first)| {
        json!({"hostPort": first + number, "containerPort": container, "protocol": "tcp"})
    });
    json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}})
}

fn named(mut plugin: Value, side: &Side) -> Value {
    plugin["cniVersion"] = "1.0.0".into();
    plugin["name"] = format!("chain-{}", side.name).into();
    plugin
}
