//! A sandbox's way through bridge and host-local, round after round.

use serde_json::{Value, json};
use tests::Host;

use crate::report::Report;
use crate::timing::{Call, Side, in_turns};

/// Every operation once a round, on a sandbox that nothing was done to.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    in_turns(&mut sides, rounds, |side, number| round(host, side, number));
    report.times(&format!("a sandbox, {rounds} rounds in turns"), &sides);
}

fn round(host: &Host, side: &mut Side, number: &str) {
    let sandbox = host.sandbox(&format!("{}-{number}", side.name));
    let call = |plugin, verb| Call::of(&sandbox, plugin, verb);
    let mut bridge = bridge(side.name);
    side.time(
        "VERSION",
        &call("bridge", "VERSION"),
        &json!({"cniVersion": "1.0.0"}),
    );
    let lo = json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"});
    side.time("loopback ADD", &call("loopback", "ADD"), &lo);
    let result = side.time("bridge ADD", &call("bridge", "ADD"), &bridge);
    bridge["prevResult"] = serde_json::from_slice(&result).unwrap();
    side.time("bridge CHECK", &call("bridge", "CHECK"), &bridge);
    side.time("bridge DEL", &call("bridge", "DEL"), &bridge);
}

/// A bridge, addresses and leases of the side's own.
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
