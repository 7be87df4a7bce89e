//! Time to lease an address of dnsmasq by each side's own daemon.

use std::process::{Child, Command, Stdio};

use serde_json::{from_slice, json};
use tests::{Dnsmasq, Host, Place as _, eventually};

use crate::report::Report;
use crate::timing::{Call, Side, in_turns, settle};

/// Times ADD, CHECK and DEL once per round on fresh sandboxes, whose `eth0` is at the server's bridge.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    host.ip("link add lan type bridge");
    host.ip("address add 10.6.0.1/16 dev lan");
    host.ip("link set lan up");
    let leased = [
        "--dhcp-range=10.6.1.1,10.6.9.250,255.255.0.0,1h",
        "--dhcp-authoritative",
        "--no-ping",
    ];
    let _server = Dnsmasq::start(host, "lan", &leased);
    let _daemons = sides.each_ref().map(Daemon::start);
    in_turns(&mut sides, rounds, |side, number| round(host, side, number));
    report.times(&format!("dhcp, {rounds} rounds in turns"), &sides);
}

fn round(host: &Host, side: &mut Side, number: &str) {
    let sandbox = host.sandbox(&format!("dhcp-{}-{number}", side.name));
    let link = format!("lan-{number}");
    let netns = sandbox.path().display().to_string();
    host.ip(&format!("link add {link} type veth peer name eth0"));
    host.ip(&format!("link set eth0 netns {netns}"));
    host.ip(&format!("link set {link} master lan up"));
    sandbox.ip("link set eth0 up");
    let mut request = json!({
        "cniVersion": "1.0.0",
        "name": "leased",
        "type": "dhcp",
        "ipam": {"type": "dhcp", "daemonSocketPath": socket(side)},
    });
    settle();
    for verb in ["ADD", "CHECK", "DEL"] {
        let call = Call::of(&sandbox, "dhcp", verb);
        let result = side.time(&format!("dhcp {verb}"), &call, &request);
        if verb == "ADD" {
            request["prevResult"] = from_slice(&result).unwrap();
        }
        settle();
    }
    host.ip(&format!("link delete {link}"));
}

fn socket(side: &Side) -> String {
    format!("/run/dhcp-{}.sock", side.name)
}

/// A daemon that runs until this is dropped.
struct Daemon(Child);

impl Daemon {
    fn start(side: &Side) -> Self {
        let socket = socket(side);
        let mut daemon = Command::new(side.directory.join("dhcp"));
        daemon.args(["daemon", "-socketpath", &socket]);
        daemon.stdin(Stdio::null()).stderr(Stdio::null());
        let daemon = Self(daemon.spawn().unwrap());
        assert!(eventually(|| std::path::Path::new(&socket).exists()));
        daemon
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
