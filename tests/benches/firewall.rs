//! Time to give and take permission to pass the host's firewall.

use serde_json::{Value, json};
use tests::{Host, Place as _, Sandbox};

use crate::report::Report;
use crate::timing::{Call, Side, in_turns};

/// Times ADD, CHECK and DEL while as many other pods have permission from the same side.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    host.run("iptables-nft", &["-P", "FORWARD", "DROP"]);
    let pod = host.sandbox("fenced");
    for side in &mut sides {
        for number in 0..PODS {
            let other = host.sandbox(&format!("fenced-{}-{number}", side.name));
            side.run(&call(&other, "ADD"), &request(side, 1000 + number));
        }
    }
    in_turns(&mut sides, rounds, |side, _| {
        let request = request(side, 1);
        for verb in ["ADD", "CHECK", "DEL"] {
            side.time(&format!("firewall {verb}"), &call(&pod, verb), &request);
        }
    });
    host.run("iptables-nft", &["-P", "FORWARD", "ACCEPT"]);
    report.times(
        &format!("firewall beside {PODS} pods, {rounds} rounds in turns"),
        &sides,
    );
}

fn call<'a>(pod: &'a Sandbox, verb: &'a str) -> Call<'a> {
    Call::of(pod, "firewall", verb)
}

/// Returns a request for a pod with an address of the side's own subnet.
fn request(side: &Side, number: u32) -> Value {
    let subnet = if side.name == "ours" { 206 } else { 207 };
    let address = format!("10.{subnet}.{}.{}/16", number / 250, number % 250 + 1);
    json!({
        "cniVersion": "1.0.0",
        "name": format!("fenced-{}", side.name),
        "type": "firewall",
        "backend": "iptables",
        "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": address}]},
    })
}

/// Pods with permission besides the timed one.
const PODS: u32 = 100;
