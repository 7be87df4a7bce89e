//! Time to set and remove limits.

use std::path::Path;

use serde_json::{Value, json};
use tests::{Checkpoint, Host};

use crate::report::Report;
use crate::timing::{Call, Side, in_turns};

/// Times ADD, CHECK and DEL on the side's own bridge, each with a fresh sandbox.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    in_turns(&mut sides, rounds, |side, number| round(host, side, number));
    report.times(&format!("limits, {rounds} rounds in turns"), &sides);
}

/// Times the same for limits that the runtime sends, and for those of the devices of a pod on a node
/// with 10,000 devices. The pod has the last ones of 100 pods with 10 devices each.
pub fn run_devices(host: &Host, ours: &Path, rounds: u32, report: &mut Report) {
    let mut checkpoint = Checkpoint::new().register(10_000);
    for pod in 0..100 {
        let ids = |direction| (0..5).map(move |it| format!("{direction}-{pod:03}-{it}"));
        for direction in ["ingress", "egress"] {
            let ids: Vec<_> = ids(direction).collect();
            let ids: Vec<_> = ids.iter().map(String::as_str).collect();
            let resource = format!("example.org/{direction}-2mbit");
            checkpoint = checkpoint.give(&format!("uid-{pod}"), &resource, &ids);
        }
    }
    checkpoint.write();
    let mut sides = ["asked", DEVICES].map(|name| Side::new(name, ours));
    in_turns(&mut sides, rounds, |side, number| {
        round(host, side, number);
    });
    let title = format!("limits of the runtime and of devices, {rounds} rounds in turns");
    report.times(&title, &sides);
}

fn round(host: &Host, side: &mut Side, number: &str) {
    let sandbox = host.sandbox(&format!("limits-{}-{number}", side.name));
    let call = |plugin, verb| Call::of(&sandbox, plugin, verb);
    // Two bridges of ours cannot have one gateway.
    let subnet = match side.name {
        DEVICES => "10.209.0.0/16",
        _ => "10.202.0.0/16",
    };
    let mut bridge = bridge(side.name, subnet, 1500);
    let (result, _) = side.run(&call("bridge", "ADD"), &bridge);
    let mut limits = limits(10_000_000, CONTAINERD, &result);
    if side.name == DEVICES {
        limits["runtimeConfig"] = json!({});
        limits["podResources"] = true.into();
    }
    let add = call("bandwidth", "ADD").with_args("K8S_POD_UID=uid-99");
    let limited = side.time("bandwidth ADD", &add, &limits);
    limits["prevResult"] = serde_json::from_slice(&limited).unwrap();
    side.time("bandwidth CHECK", &call("bandwidth", "CHECK"), &limits);
    side.time("bandwidth DEL", &call("bandwidth", "DEL"), &limits);
    bridge["prevResult"] = serde_json::from_slice(&result).unwrap();
    side.run(&call("bridge", "DEL"), &bridge);
}

/// Name of the side whose limits are those of devices.
const DEVICES: &str = "devices";

/// Bits that containerd sends for an unset burst.
pub const CONTAINERD: u64 = 4_294_967_295;

/// Returns a configuration with a bridge of its own for each side.
pub fn bridge(side: &str, subnet: &str, mtu: u32) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": format!("limits-{side}"),
        "type": "bridge",
        "bridge": format!("lim-{side}"),
        "isGateway": true,
        "mtu": mtu,
        "ipam": {
            "type": "host-local",
            "dataDir": format!("/run/limits-{side}"),
            "ranges": [[{"subnet": subnet}]],
            "routes": [{"dst": if subnet.contains(':') { "::/0" } else { "0.0.0.0/0" }}],
        },
    })
}

/// Returns a request for the same rate in both directions, as a runtime sends it.
pub fn limits(rate: u64, burst: u64, result: &[u8]) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "limits",
        "type": "bandwidth",
        "runtimeConfig": {"bandwidth": {
            "ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst,
        }},
        "prevResult": serde_json::from_slice::<Value>(result).unwrap(),
    })
}
