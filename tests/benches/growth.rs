//! bridge with host-local where many pods are attached already.
//!
//! The pods are attached by ours, with ipMasq and macspoofchk, to bridges of 500; either side then
//! attaches one more to the first bridge, and the reference's leases are as many. With ipMasq and
//! macspoofchk ours is timed alone: the reference would have to attach the pods itself, with
//! several runs of iptables for each. STATUS and GC it has from 1.5.0 on.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tests::{Host, Place as _, Sandbox, at_once};

use crate::report::Report;
use crate::timing::{Call, Side};

/// How many pods there are before the one that is timed.
const SIZES: [usize; 4] = [0, 100, 500, 1_000];

/// A bridge holds 1,023.
const PODS_OF_A_BRIDGE: usize = 500;

/// Every operation at every size.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    // A node has a way out, by which the MTU is detected.
    let _outside = host.outside();
    host.ip("route add default via 192.0.2.2");
    let sandbox = host.sandbox("one-more");
    let mut pods = Vec::new();
    for side in &mut sides {
        round(side, &sandbox, 0);
        side.forget();
    }
    for size in SIZES {
        attach(host, &sides[0], &mut pods, size);
        settle();
        for _ in 0..rounds {
            for side in &mut sides {
                round(side, &sandbox, size);
            }
        }
        let [ours, _] = &mut sides;
        for _ in 0..rounds {
            round_of_ours(ours, &sandbox, &pods);
        }
    }
    detach(&sides[0], &pods);
    let title = format!("bridge and host-local by pods attached, {rounds} rounds in turns");
    report.times(&title, &sides);
}

/// Attaches pods until there are `size`, and gives the reference as many leases.
fn attach(host: &Host, ours: &Side, pods: &mut Vec<Sandbox>, size: usize) {
    let there = pods.len();
    pods.extend((there..size).map(|number| host.sandbox(&format!("pod-{number}"))));
    for first in (there..size).step_by(AT_ONCE) {
        let some = &pods[first..size.min(first + AT_ONCE)];
        let network = guarded(first / PODS_OF_A_BRIDGE);
        at_once(some, |pod| {
            ours.run(&Call::of(pod, "bridge", "ADD"), &network)
        });
    }
    let [from, to] = ["ours-0", "reference"].map(|network| format!("{LEASES}/{network}"));
    for lease in fs::read_dir(from).unwrap() {
        let lease = lease.unwrap();
        fs::copy(
            lease.path(),
            format!("{to}/{}", lease.file_name().display()),
        )
        .unwrap();
    }
}

/// As if there had been none, for whatever is timed next.
fn detach(ours: &Side, pods: &[Sandbox]) {
    for (number, some) in pods.chunks(AT_ONCE).enumerate() {
        let network = guarded(number * AT_ONCE / PODS_OF_A_BRIDGE);
        at_once(some, |pod| {
            ours.run(&Call::of(pod, "bridge", "DEL"), &network);
            pod.remove();
        });
    }
    settle();
}

/// Each new pod asks for routers three times, four seconds apart, and all others hear it.
fn settle() {
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing tells when a namespace has become quiet"
    )]
    thread::sleep(Duration::from_secs(14));
}

/// What either side does, without ipMasq and macspoofchk.
fn round(side: &mut Side, sandbox: &Sandbox, pods: usize) {
    let network = if side.name == "ours" {
        "ours-0"
    } else {
        side.name
    };
    let mut request = bridge(network, 0);
    let mut time = |verb: &str, request: &Value| {
        side.time(
            &format!("{pods} pods, {verb}"),
            &Call::of(sandbox, "bridge", verb),
            request,
        )
    };
    let result = time("ADD", &request);
    request["prevResult"] = serde_json::from_slice(&result).unwrap();
    time("CHECK", &request);
    time("DEL", &request);
}

/// What ours does alone.
fn round_of_ours(ours: &mut Side, sandbox: &Sandbox, pods: &[Sandbox]) {
    let size = pods.len();
    let mut request = guarded(0);
    let mut time = |label: &str, verb: &str, request: &Value| {
        ours.time(
            &format!("{size} pods, {label}"),
            &Call::of(sandbox, "bridge", verb),
            request,
        )
    };
    let result = time("ADD guarded", "ADD", &request);
    request["prevResult"] = serde_json::from_slice(&result).unwrap();
    time("CHECK guarded", "CHECK", &request);
    time("DEL guarded", "DEL", &request);
    time("STATUS", "STATUS", &request);
    let listed = pods.iter().take(PODS_OF_A_BRIDGE);
    let listed = listed.map(|pod| json!({"containerID": pod.name(), "ifname": "eth0"}));
    request["cni.dev/valid-attachments"] = listed.collect();
    time("GC, all listed", "GC", &request);
}

/// A network of ours, its traffic masqueraded and its MACs checked.
fn guarded(number: usize) -> Value {
    let mut request = bridge(&format!("ours-{number}"), number);
    request["cniVersion"] = "1.1.0".into();
    request["ipMasq"] = true.into();
    request["macspoofchk"] = true.into();
    request
}

/// A network on the bridge of this number.
fn bridge(network: &str, number: usize) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": network,
        "type": "bridge",
        "bridge": format!("br-{number}"),
        "isGateway": true,
        "ipam": {
            "type": "host-local",
            "dataDir": LEASES,
            "ranges": [[{"subnet": format!("10.{}.0.0/16", 200 + number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}

const LEASES: &str = "/run/leases";

/// ADDs that populate the host wait for the kernel most of the time.
const AT_ONCE: usize = 10;
