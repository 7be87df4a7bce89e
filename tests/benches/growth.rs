//! Times bridge with host-local on a host with many attached pods.
//!
//! Our plugin attaches the pods, with ipMasq and macspoofchk, to bridges of 500 each. Either side
//! then attaches one more pod to the first bridge; the reference has as many leases. Only our side
//! is timed with ipMasq and macspoofchk. The reference would have to attach the pods itself, with
//! several runs of iptables for each. It has STATUS and GC from 1.5.0 on.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tests::{Host, Place as _, Sandbox, at_once};

use crate::report::Report;
use crate::timing::{Call, Side};

/// Numbers of pods before the timed one.
const SIZES: [usize; 4] = [0, 100, 500, 1_000];

/// Pods per bridge; a bridge holds 1,023.
const PODS_OF_A_BRIDGE: usize = 500;

/// Times every operation at every size.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    // A node has an uplink, which determines the MTU.
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

/// Attaches pods until there are `size`, and creates as many leases of the reference.
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

/// Removes the pods, for the sake of the next measurement.
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

/// Waits until the new pods are quiet: each asks for routers three times, four seconds apart, and
/// all others receive that.
fn settle() {
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing tells when a namespace has become quiet"
    )]
    thread::sleep(Duration::from_secs(14));
}

/// Times the operations of both sides, without ipMasq and macspoofchk.
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

/// Times the operations of our side only.
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

/// Returns a network of ours with masquerading and MAC checks.
fn guarded(number: usize) -> Value {
    let mut request = bridge(&format!("ours-{number}"), number);
    request["cniVersion"] = "1.1.0".into();
    request["ipMasq"] = true.into();
    request["macspoofchk"] = true.into();
    request
}

/// Returns a network on the bridge with this number.
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

/// Concurrent ADDs: they wait for the kernel most of the time.
const AT_ONCE: usize = 10;
