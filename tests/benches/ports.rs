//! Times portmap alone and beside 5,000 ports of other pods, and connections through these.

use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use serde_json::{Value, json};
use tests::{Host, Place as _, Sandbox};

use crate::report::Report;
use crate::timing::{Call, Side, in_turns, settle};

/// Ports of other pods.
const OTHERS: std::ops::Range<u16> = 10_000..15_000;

/// Number of times that they come and go, so that other load affects both cases.
const CHANGES: u32 = 10;

/// Connections at a time, alternately through the first and the last port.
const CONNECTIONS: u32 = 500;

/// Number of turns for each port.
const TURNS: u32 = 20;

/// Times ADD and DEL of a pod with two ports on both sides, then ours beside many ports, then
/// connections.
pub fn run(host: &Host, mut sides: [Side; 2], rounds: u32, report: &mut Report) {
    let outside = host.outside();
    let pod = pod(host);
    in_turns(&mut sides, rounds, |side, _| {
        round(side, &pod, ["ADD", "DEL"]);
        settle();
        udp_round(side, &pod);
    });
    let [ours, _] = &mut sides;
    let rounds_of = |side: &mut Side, labels| {
        for _ in 0..rounds / CHANGES {
            round(side, &pod, labels);
            settle();
        }
    };
    for _ in 0..CHANGES {
        rounds_of(ours, ["ADD, no other port", "DEL, no other port"]);
        many(ours, &pod, "ADD");
        rounds_of(ours, ["ADD, 5,000 others", "DEL, 5,000 others"]);
        many(ours, &pod, "DEL");
    }
    many(ours, &pod, "ADD");
    let rates = rates(&outside, &pod);
    many(ours, &pod, "DEL");
    let title = format!("two ports of a pod, {rounds} rounds in turns");
    report.times(&title, &sides);
    let title = "connections by one of 5,000 ports";
    println!("\n{title}, per second\n");
    let row = |(port, rate): &(u16, f64)| {
        println!("{port:<24}{rate:>9.0}");
        json!({"case": port, "ours": rate})
    };
    let rows: Vec<_> = rates.iter().map(row).collect();
    report.values(title, "1/s", &rows);
}

/// Returns a pod connected by a veth pair.
fn pod(host: &Host) -> Sandbox {
    let pod = host.sandbox("pod");
    host.ip("link add pod0 type veth peer name eth0 netns pod");
    host.ip("address add 10.200.0.1/24 dev pod0");
    host.ip("link set pod0 up");
    pod.ip("address add 10.200.0.2/24 dev eth0");
    pod.ip("link set eth0 up");
    pod.ip("route add default via 10.200.0.1");
    host.set_sysctl("net/ipv4/ip_forward", "1");
    pod
}

fn round(side: &mut Side, pod: &Sandbox, labels: [&str; 2]) {
    two_ports(side, pod, "tcp", labels);
}

/// Times ports of UDP, for which portmap asks the kernel to forget connections.
fn udp_round(side: &mut Side, pod: &Sandbox) {
    two_ports(side, pod, "udp", ["ADD, one of udp", "DEL, one of udp"]);
}

fn two_ports(side: &mut Side, pod: &Sandbox, second: &str, [add, del]: [&str; 2]) {
    let request = request(&json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8053, "containerPort": 53, "protocol": second},
    ]));
    side.time(add, &call(pod, "ADD", "one"), &request);
    side.time(del, &call(pod, "DEL", "one"), &request);
}

fn many(side: &mut Side, pod: &Sandbox, verb: &str) {
    let mappings =
        OTHERS.map(|port| json!({"hostPort": port, "containerPort": 80, "protocol": "tcp"}));
    let request = request(&mappings.collect());
    side.time(
        &format!("{verb} of 5,000 ports"),
        &call(pod, verb, "many"),
        &request,
    );
}

fn call<'a>(pod: &'a Sandbox, verb: &'a str, container: &'a str) -> Call<'a> {
    Call {
        plugin: "portmap",
        verb,
        container,
        netns: pod.path(),
        args: "",
    }
}

fn request(mappings: &Value) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "type": "portmap",
        "runtimeConfig": {"portMappings": mappings},
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "sandbox": "/run/netns/pod"}],
            "ips": [{"address": "10.200.0.2/24", "interface": 0}],
        },
    })
}

/// Returns connections per second from another host, through the first and the last port. It is the
/// median of all turns: a client port that the pod still remembers sometimes costs a turn a second.
fn rates(outside: &Sandbox, pod: &Sandbox) -> [(u16, f64); 2] {
    let listening = pod.enter(|| TcpListener::bind("0.0.0.0:80").unwrap());
    std::thread::spawn(move || listening.incoming().for_each(drop));
    let mut turns = [(OTHERS.start, Vec::new()), (OTHERS.end - 1, Vec::new())];
    for _ in 0..TURNS {
        for (port, seconds) in &mut turns {
            let start = Instant::now();
            outside.enter(|| {
                for _ in 0..CONNECTIONS {
                    TcpStream::connect(("192.0.2.1", *port)).unwrap();
                }
            });
            seconds.push(start.elapsed().as_secs_f64());
        }
        // The order alternates, because the first one affects the second one.
        turns.reverse();
    }
    turns.sort_by_key(|(port, _)| *port);
    turns.map(|(port, mut seconds)| {
        seconds.sort_by(f64::total_cmp);
        (port, f64::from(CONNECTIONS) / seconds[seconds.len() / 2])
    })
}
