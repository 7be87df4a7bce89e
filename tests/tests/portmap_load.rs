//! portmap: many concurrent ADDs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::Value;
use tests::faults::Trace;
use tests::ports::rules;
use tests::traffic::tcp_by_port;
use tests::{Host, Network, Ports, Sandbox};

const SANDBOXES: u16 = 200;
const PORTS: u16 = 5;
const PROCESSES: usize = 16;
const PORTS_OF_ONE: u16 = 6_000;

/// Returns the ports of the pod with this number: host and container ports all differ.
fn mappings(pod: u16) -> Vec<String> {
    (0..PORTS)
        .map(|port| format!("{}:{}", host_port(pod, port), 80 + port))
        .collect()
}

fn host_port(pod: u16, port: u16) -> u16 {
    10_000 + pod * PORTS + port
}

/// Runs `work` for each of `count` numbers on several threads. Each thread runs one process at a
/// time in the host's namespaces.
fn at_once(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    work(number);
                }
            });
        }
    });
}

fn attach<'h>(ports: &Ports<'h>, pod: u16, sandbox: &Sandbox) -> Network<'h> {
    let mappings = mappings(pod);
    let mappings: Vec<_> = mappings.iter().map(String::as_str).collect();
    ports.attach(sandbox, &mappings)
}

#[test]
fn two_hundred_sandboxes_with_five_ports_each_come_and_go_at_once() {
    let host = Host::new();
    let outside = host.outside();
    let ranges = serde_json::json!([[{"subnet": "10.1.0.0/23"}]]);
    let ports = host.ports().with_bridge("ipam.ranges", ranges);
    let pods: Vec<_> = (0..SANDBOXES)
        .map(|pod| (pod, host.sandbox(&format!("p{pod}"))))
        .collect();
    // Another test covers concurrent ADDs of the bridge.
    let attached: Vec<_> = pods
        .iter()
        .map(|(pod, it)| attach(&ports, *pod, it))
        .collect();
    let failed = Mutex::new(Vec::new());
    at_once(pods.len(), |number| {
        let outcome = attached[number].on("ADD", &pods[number].1).run();
        if !outcome.status.success() {
            failed.lock().unwrap().push(outcome);
        }
    });
    assert!(failed.lock().unwrap().is_empty(), "{failed:#?}");
    for (pod, sandbox) in &pods {
        for port in 0..PORTS {
            let target = format!("192.0.2.1:{}", host_port(*pod, port));
            let seen = tcp_by_port(&outside, &target, (sandbox, 80 + port));
            assert!(seen.is_some(), "{target}");
        }
    }
    at_once(pods.len(), |number| {
        let delete = ports.forgotten(&pods[number].1);
        assert_eq!(delete.ok(), Value::Null);
    });
    let listed = rules(&host);
    assert!(!listed.contains("cni:"), "{listed}");
    assert_eq!(std::fs::read_dir("/run/cni/portmap").unwrap().count(), 0);
}

/// One of many concurrent requests gets the port; the other ones report the holder.
#[test]
fn one_of_many_gets_the_port() {
    let host = Host::new();
    let ports = host.ports();
    let pods: Vec<_> = (0..PROCESSES)
        .map(|pod| host.sandbox(&format!("p{pod}")))
        .collect();
    let attached: Vec<_> = pods
        .iter()
        .map(|pod| ports.attach(pod, &["8080:80"]))
        .collect();
    let outcomes = Mutex::new(Vec::new());
    at_once(pods.len(), |number| {
        let outcome = attached[number].on("ADD", &pods[number]).run();
        outcomes.lock().unwrap().push((number, outcome));
    });
    let outcomes = outcomes.into_inner().unwrap();
    let (won, lost): (Vec<_>, Vec<_>) = outcomes
        .into_iter()
        .partition(|(_, outcome)| outcome.status.success());
    assert_eq!(won.len(), 1, "{won:#?}");
    let holder = &pods[won[0].0];
    let owner = format!("cni:pods/{}/eth0", holder.name());
    for (_, outcome) in lost {
        outcome.error().expect(11, &[&owner]);
    }
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (holder, 80)).is_some());
}

#[test]
fn a_pod_may_have_a_thousand_ports() {
    let host = Host::new();
    let a = host.sandbox("a");
    let ports = host.ports();
    let mappings: Vec<_> = (10_000..11_000).map(|port| format!("{port}:80")).collect();
    let mappings: Vec<_> = mappings.iter().map(String::as_str).collect();
    let portmap = ports.add(&a, &mappings);
    for port in [10_000, 10_999] {
        for address in ["127.0.0.1", "[fd00:1::1]"] {
            let seen = tcp_by_port(&host, &format!("{address}:{port}"), (&a, 80));
            assert!(seen.is_some(), "{address} {port}");
        }
    }
    portmap.on("CHECK", &a).ok();
    ports.forgotten(&a).ok();
    let listed = rules(&host);
    assert!(!listed.contains("cni:"), "{listed}");
}

/// The second ADD looks up as many ports again and replaces each, so it takes a small multiple of
/// the first one's time.
#[test]
fn a_second_add_of_many_ports_takes_little_longer_than_the_first() {
    let host = Host::new();
    let a = host.sandbox("a");
    let ports = host.ports();
    let mappings =
        |container: u16| (0..PORTS_OF_ONE).map(move |it| format!("{}:{container}", 10_000 + it));
    let mappings = |container| mappings(container).collect::<Vec<_>>();
    let [first, second] = [mappings(80), mappings(81)];
    let [first, second] =
        [&first, &second].map(|it| it.iter().map(String::as_str).collect::<Vec<_>>());
    let portmap = ports.attach(&a, &first);
    let [took, again] = [&first, &second].map(|mappings| {
        let asking = Ports::asking(&portmap, mappings);
        let start = Instant::now();
        asking.add(&a);
        start.elapsed()
    });
    println!("{took:?}, then {again:?}");
    assert!(again < took * 5, "{took:?}, then {again:?}");
    for port in [10_000, 10_000 + PORTS_OF_ONE - 1] {
        let target = format!("127.0.0.1:{port}");
        assert!(tcp_by_port(&host, &target, (&a, 81)).is_some(), "{target}");
    }
    ports.forgotten(&a).ok();
    assert!(!rules(&host).contains("cni:"), "{}", rules(&host));
}

/// An ADD that asks for ports of all addresses lists ports of single addresses once.
#[test]
fn more_ports_do_not_list_more_of_other_containers_ports() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let ports = host.ports();
    let mapped = |range: std::ops::Range<u16>, host: &str| -> Vec<_> {
        range.map(|port| format!("{host}{port}:80")).collect()
    };
    let attach = |pod, mappings: Vec<String>| {
        let mappings: Vec<_> = mappings.iter().map(String::as_str).collect();
        ports.attach(pod, &mappings)
    };
    attach(&a, mapped(10_000..10_200, "192.0.2.1:")).add(&a);
    let file = host.dir().join("calls");
    let received =
        |pod, mappings| Trace::of(&attach(pod, mappings).on("ADD", pod), &file).received();
    let one = received(&b, mapped(20_000..20_001, ""));
    let twenty = received(&c, mapped(20_001..20_021, ""));
    println!("{one} bytes for one port, {twenty} for twenty");
    assert!(one > 200 * 60, "each of the 200 is told: {one}");
    assert!(twenty < 2 * one, "{twenty} bytes for twenty, {one} for one");
}
