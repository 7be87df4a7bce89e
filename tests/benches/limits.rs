//! Time to set and remove limits.

use serde_json::{Value, json};
use tests::Host;

use crate::report::Report;
use crate::timing::{Call, Side, in_turns};

/// Times ADD, CHECK and DEL on the side's own bridge, each with a fresh sandbox.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    in_turns(&mut sides, rounds, |side, number| round(host, side, number));
    report.times(&format!("limits, {rounds} rounds in turns"), &sides);
}

fn round(host: &Host, side: &mut Side, number: &str) {
    let sandbox = host.sandbox(&format!("limits-{}-{number}", side.name));
    let call = |plugin, verb| Call::of(&sandbox, plugin, verb);
    let mut bridge = bridge(side.name, "10.202.0.0/16", 1500);
    let (result, _) = side.run(&call("bridge", "ADD"), &bridge);
    let mut limits = limits(10_000_000, CONTAINERD, &result);
    let limited = side.time("bandwidth ADD", &call("bandwidth", "ADD"), &limits);
    limits["prevResult"] = serde_json::from_slice(&limited).unwrap();
    side.time("bandwidth CHECK", &call("bandwidth", "CHECK"), &limits);
    side.time("bandwidth DEL", &call("bandwidth", "DEL"), &limits);
    bridge["prevResult"] = serde_json::from_slice(&result).unwrap();
    side.run(&call("bridge", "DEL"), &bridge);
}

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
