//! `ptp` with `ipMasq` and host-local, with IPv4 and with both families.

use serde_json::{Value, json};
use tests::Host;

use crate::report::Report;
use crate::timing::{Call, Side, in_turns, settle};

/// Times ADD, CHECK and DEL once per round on fresh sandboxes.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    in_turns(&mut sides, rounds, |side, number| {
        for families in [&["IPv4"][..], &["IPv4", "IPv6"]] {
            round(host, side, (number, families));
        }
    });
    report.times(&format!("ptp, {rounds} rounds in turns"), &sides);
}

fn round(host: &Host, side: &mut Side, (number, families): (&str, &[&str])) {
    let words = families.join(", ");
    let sandbox = host.sandbox(&format!("ptp{}-{}-{number}", families.len(), side.name));
    let call = |verb| Call::of(&sandbox, "ptp", verb);
    let mut request = request(side.name, families);
    let result = side.time(&format!("ADD {words}"), &call("ADD"), &request);
    settle();
    request["prevResult"] = serde_json::from_slice(&result).unwrap();
    side.time(&format!("CHECK {words}"), &call("CHECK"), &request);
    side.time(&format!("DEL {words}"), &call("DEL"), &request);
}

fn request(side: &str, families: &[&str]) -> Value {
    let number = if side == "ours" { 207 } else { 208 };
    let (ranges, routes): (Vec<_>, Vec<_>) = families
        .iter()
        .map(|family| match *family {
            "IPv4" => (format!("10.{number}.0.0/16"), "0.0.0.0/0"),
            _ => (format!("fd00:{number}::/64"), "::/0"),
        })
        .map(|(subnet, all)| (json!([{"subnet": subnet}]), json!({"dst": all})))
        .unzip();
    json!({
        "cniVersion": "1.0.0",
        "name": format!("ptp-{side}"),
        "type": "ptp",
        "ipMasq": true,
        "ipam": {
            "type": "host-local",
            "dataDir": format!("/run/ptp-{side}"),
            "ranges": ranges,
            "routes": routes,
        },
    })
}
