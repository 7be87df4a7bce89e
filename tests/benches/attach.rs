//! Times each plugin by itself: VERSION, ADD, CHECK and DEL, round after round.

use serde_json::{Value, json};
use tests::{Host, PLUGINS};

use crate::limits::{CONTAINERD, limits};
use crate::report::Report;
use crate::timing::{Call, Side, in_turns, settle};

/// Times every operation once per round on a fresh sandbox. Limits and ports are set only for their
/// CHECK; the cases `bandwidth` and `ports` time setting them.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    in_turns(&mut sides, rounds, |side, number| round(host, side, number));
    report.times(&format!("each plugin, {rounds} rounds in turns"), &sides);
}

fn round(host: &Host, side: &mut Side, number: &str) {
    let sandbox = host.sandbox(&format!("{}-{number}", side.name));
    let call = |plugin, verb| Call::of(&sandbox, plugin, verb);
    let asked = json!({"cniVersion": "1.0.0"});
    for plugin in PLUGINS.iter().copied() {
        side.time(
            &format!("{plugin} VERSION"),
            &call(plugin, "VERSION"),
            &asked,
        );
    }
    let lo = json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"});
    for request in [lo, host_local(side.name), fixed()] {
        let plugin = request["type"].as_str().unwrap();
        let mut time = |verb, request: &Value| {
            let call = Call::of(&sandbox, plugin, verb);
            side.time(&format!("{plugin} {verb}"), &call, request)
        };
        let attached = after(&request, &time("ADD", &request));
        time("CHECK", &attached);
        time("DEL", &attached);
    }
    let request = bridge(side.name);
    let result = side.time("bridge ADD", &call("bridge", "ADD"), &request);
    let attached = after(&request, &result);
    side.time("bridge CHECK", &call("bridge", "CHECK"), &attached);
    let mut behind = vec![limits(10_000_000, CONTAINERD, &result)];
    // CHECK of Debian's portmap 1.1.1 does not find the rules of its ADD.
    if side.name == "ours" {
        behind.push(ports(&result));
    }
    for request in behind {
        let plugin = request["type"].as_str().unwrap();
        let call = |verb| Call::of(&sandbox, plugin, verb);
        let (result, _) = side.run(&call("ADD"), &request);
        let attached = after(&request, &result);
        side.time(&format!("{plugin} CHECK"), &call("CHECK"), &attached);
        side.run(&call("DEL"), &attached);
    }
    settle();
    side.time("bridge DEL", &call("bridge", "DEL"), &attached);
}

/// Returns the request after ADD has returned `result`.
fn after(request: &Value, result: &[u8]) -> Value {
    let mut request = request.clone();
    request["prevResult"] = serde_json::from_slice(result).unwrap();
    request
}

fn ports(result: &[u8]) -> Value {
    let mapping = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
    let request = json!({
        "cniVersion": "1.0.0",
        "name": "ports",
        "type": "portmap",
        "runtimeConfig": {"portMappings": [mapping]},
    });
    after(&request, result)
}

fn host_local(side: &str) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": format!("leases-{side}"),
        "type": "host-local",
        "ipam": {
            "type": "host-local",
            "dataDir": format!("/run/leases-{side}"),
            "ranges": [[{"subnet": "10.206.0.0/16"}]],
        },
    })
}

fn fixed() -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "fixed",
        "type": "static",
        "ipam": {
            "type": "static",
            "addresses": [{"address": "10.207.0.2/24", "gateway": "10.207.0.1"}],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}

/// Returns a configuration with the side's own bridge, addresses and leases.
pub fn bridge(side: &str) -> Value {
    let subnet = if side == "ours" {
        "10.200.0.0/16"
    } else {
        "10.201.0.0/16"
    };
    json!({
        "cniVersion": "1.0.0",
        "name": side,
        "type": "bridge",
        "bridge": format!("br-{side}"),
        "isGateway": true,
        "ipam": {
            "type": "host-local",
            "dataDir": format!("/run/leases-{side}"),
            "ranges": [[{"subnet": subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}
