//! Everything that a pod may get: bridge with ipMasq and host-local, two host ports, and limits in
//! both directions.

use std::time::Duration;

use serde_json::{Value, json};
use tests::Host;

use crate::report::Report;
use crate::timing::{Call, Side, in_turns};

/// Times ADD, CHECK and DEL of the chain, and of each plugin in it.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    in_turns(&mut sides, rounds, |side, number| {
        let pod = host.sandbox(&format!("chain-{}-{number}", side.name));
        let mut chain = Chain::new(side, 0);
        // CHECK of Debian's portmap 1.1.1 does not find the rules of its ADD.
        let verbs: &[_] = match side.name {
            "ours" => &["ADD", "CHECK", "DEL"],
            _ => &["ADD", "DEL"],
        };
        for verb in verbs {
            let mut whole = Duration::ZERO;
            chain.walk(verb, |plugin, request| {
                let (output, time) = side.run(&Call::of(&pod, plugin, verb), request);
                side.note(&format!("{plugin} {verb}"), time);
                whole += time;
                output
            });
            side.note(&format!("chain {verb}"), whole);
        }
    });
    report.times(&format!("the chain, {rounds} rounds in turns"), &sides);
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
        let ports = [(80, 20_000), (443, 40_000)].map(|(container, first)| {
            json!({"hostPort": first + number, "containerPort": container, "protocol": "tcp"})
        });
        let rate = 100_000_000;
        let limits = json!({
            "ingressRate": rate, "ingressBurst": rate, "egressRate": rate, "egressBurst": rate,
        });
        let plugins = vec![
            json!({
                "type": "bridge",
                "bridge": format!("chain-{}", &side.name[..4]),
                "isGateway": true,
                "ipMasq": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": format!("/run/chain-{}", side.name),
                    "ranges": [[{"subnet": if side.name == "ours" { "10.204.0.0/16" } else { "10.205.0.0/16" }}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }),
            json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}}),
            json!({"type": "bandwidth", "runtimeConfig": {"bandwidth": limits}}),
        ];
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

fn named(mut plugin: Value, side: &Side) -> Value {
    plugin["cniVersion"] = "1.0.0".into();
    plugin["name"] = format!("chain-{}", side.name).into();
    plugin
}
