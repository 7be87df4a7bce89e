//! Plugins whose link lives in the sandbox alone, with host-local and IPv4. Leaves out kinds of links
//! that the kernel lacks.

use serde_json::{Value, json};
use tests::{Host, Place as _};

use crate::report::Report;
use crate::timing::{Call, Side, in_turns, settle};

const PLUGINS: [&str; 5] = ["macvlan", "ipvlan", "vlan", "dummy", "host-device"];

/// Times ADD, CHECK and DEL once per round on fresh sandboxes.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    for (link, peer) in [("card", "gate"), ("nic", "switch")] {
        host.ip(&format!("link add {link} type veth peer name {peer}"));
        host.ip(&format!("link set {link} up"));
        host.ip(&format!("link set {peer} up"));
    }
    let is_known = |plugin: &&str| *plugin == "host-device" || host.has_kind(plugin);
    for plugin in PLUGINS.into_iter().filter(is_known) {
        in_turns(&mut sides, rounds, |side, number| {
            round(host, side, (number, plugin));
        });
    }
    report.times(&format!("single, {rounds} rounds in turns"), &sides);
}

fn round(host: &Host, side: &mut Side, (number, plugin): (&str, &str)) {
    let sandbox = host.sandbox(&format!("{plugin}-{}-{number}", side.name));
    let call = |verb| Call::of(&sandbox, plugin, verb);
    let mut request = request(side.name, plugin);
    let result = side.time(&format!("{plugin} ADD"), &call("ADD"), &request);
    settle();
    request["prevResult"] = serde_json::from_slice(&result).unwrap();
    side.time(&format!("{plugin} CHECK"), &call("CHECK"), &request);
    side.time(&format!("{plugin} DEL"), &call("DEL"), &request);
}

fn request(side: &str, plugin: &str) -> Value {
    let number = if side == "ours" { 217 } else { 218 };
    json!({
        "cniVersion": "1.0.0",
        "name": format!("{plugin}-{side}"),
        "type": plugin,
        "master": "card",
        "vlanId": 100,
        "device": "nic",
        "ipam": {
            "type": "host-local",
            "dataDir": format!("/run/{plugin}-{side}"),
            "ranges": [[{"subnet": format!("10.{number}.0.0/16")}]],
        },
    })
}
