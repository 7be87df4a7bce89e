//! Plugins whose link lives in the sandbox alone, with host-local and IPv4, and those that follow one.
//! Leaves out what the kernel or the reference lacks.

use serde_json::{Value, json};
use tests::{Host, Place as _};

use crate::report::Report;
use crate::timing::{Call, Side, in_turns, settle};

const PLUGINS: [&str; 8] = [
    "macvlan",
    "ipvlan",
    "vlan",
    "dummy",
    "host-device",
    "tap",
    "sbr",
    "vrf",
];

/// Times ADD, CHECK and DEL once per round on fresh sandboxes.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    for (link, peer) in [("card", "gate"), ("nic", "switch")] {
        host.ip(&format!("link add {link} type veth peer name {peer}"));
        host.ip(&format!("link set {link} up"));
        host.ip(&format!("link set {peer} up"));
    }
    let is_known = |plugin: &&str| match *plugin {
        "host-device" | "tap" | "sbr" => true,
        kind => host.has_kind(kind),
    };
    let known = PLUGINS.into_iter().filter(is_known);
    let of_both: Vec<_> = known
        .filter(|plugin| sides.iter().all(|side| side.has(plugin)))
        .collect();
    for plugin in of_both {
        in_turns(&mut sides, rounds, |side, number| {
            round(host, side, (number, plugin));
        });
        report.times(&format!("{plugin}, {rounds} rounds in turns"), &sides);
    }
}

fn round(host: &Host, side: &mut Side, (number, plugin): (&str, &str)) {
    let sandbox = host.sandbox(&format!("{plugin}-{}-{number}", side.name));
    let call = |plugin, verb| Call::of(&sandbox, plugin, verb);
    let mut request = request(side.name, plugin);
    let is_chained = matches!(plugin, "sbr" | "vrf");
    let mut before = self::request(side.name, "macvlan");
    if is_chained {
        let (result, _) = side.run(&call("macvlan", "ADD"), &before);
        before["prevResult"] = serde_json::from_slice(&result).unwrap();
        request["prevResult"] = before["prevResult"].clone();
        settle();
    }
    let result = side.time(&format!("{plugin} ADD"), &call(plugin, "ADD"), &request);
    settle();
    request["prevResult"] = serde_json::from_slice(&result).unwrap();
    for verb in ["CHECK", "DEL"] {
        side.time(&format!("{plugin} {verb}"), &call(plugin, verb), &request);
    }
    if is_chained {
        side.run(&call("macvlan", "DEL"), &before);
    }
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
        "vrfname": "blue",
        "ipam": {
            "type": "host-local",
            "dataDir": format!("/run/{plugin}-{side}"),
            "ranges": [[{"subnet": format!("10.{number}.0.0/16")}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}
