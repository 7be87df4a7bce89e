//! Time to tune an interface, and to restore it.

use serde_json::{Value, json};
use tests::Host;

use crate::limits::bridge;
use crate::report::Report;
use crate::timing::{Call, Side, in_turns};

/// Times ADD, CHECK and DEL on the side's own bridge, each with a fresh sandbox.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    in_turns(&mut sides, rounds, |side, number| round(host, side, number));
    report.times(&format!("tuning, {rounds} rounds in turns"), &sides);
}

fn round(host: &Host, side: &mut Side, number: &str) {
    let sandbox = host.sandbox(&format!("tuned-{}-{number}", side.name));
    let call = |plugin, verb| Call::of(&sandbox, plugin, verb);
    let mut bridge = bridge(side.name, "10.202.0.0/16", 1500);
    let (result, _) = side.run(&call("bridge", "ADD"), &bridge);
    let mut tuning = tuning(&result);
    let tuned = side.time("tuning ADD", &call("tuning", "ADD"), &tuning);
    tuning["prevResult"] = serde_json::from_slice(&tuned).unwrap();
    side.time("tuning CHECK", &call("tuning", "CHECK"), &tuning);
    side.time("tuning DEL", &call("tuning", "DEL"), &tuning);
    bridge["prevResult"] = serde_json::from_slice(&result).unwrap();
    side.run(&call("bridge", "DEL"), &bridge);
}

/// Returns a request for what both sides know.
fn tuning(result: &[u8]) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "tuned",
        "type": "tuning",
        "sysctl": {"net.core.somaxconn": "512"},
        "mac": "02:00:00:00:00:41",
        "mtu": 1400,
        "promisc": true,
        "allmulti": true,
        "prevResult": serde_json::from_slice::<Value>(result).unwrap(),
    })
}
