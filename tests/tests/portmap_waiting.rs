//! portmap: a port whose holder is about to be deleted. A kubelet does this when it starts the
//! successor of a force-deleted pod.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::traffic::tcp_by_port;
use tests::{Host, Invocation, Network, Outcome, Ports, Sandbox};

/// Pod `old` has the port; pod `new` asks for it.
struct Pods<'h> {
    host: &'h Host,
    ports: Ports<'h>,
    old: Sandbox,
    new: Sandbox,
    asks: Network<'h>,
}

impl<'h> Pods<'h> {
    fn new(host: &'h Host, [held, asked]: [&str; 2]) -> Self {
        let [old, new] = ["old", "new"].map(|name| host.sandbox(name));
        let ports = host.ports();
        ports.add(&old, &[held]);
        let asks = ports.attach(&new, &[asked]);
        Self {
            host,
            ports,
            old,
            new,
            asks,
        }
    }

    /// Runs ADD of `new` and returns its outcome and time from start to exit. Runs `meanwhile` a
    /// second after the start.
    fn add_beside(&self, meanwhile: impl FnOnce() + Send) -> (Outcome, Duration) {
        let add = self.asks.on("ADD", &self.new);
        let ended = Mutex::new(None);
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                let outcome = add.run();
                *ended.lock().unwrap() = Some((outcome, start.elapsed()));
            });
            // A thread that ended before may have left an unpark token.
            while let Some(left) = Duration::from_secs(1).checked_sub(start.elapsed()) {
                thread::park_timeout(left);
            }
            assert!(ended.lock().unwrap().is_none(), "it waits");
            meanwhile();
        });
        ended.into_inner().unwrap().unwrap()
    }

    fn serves(&self, pod: &Sandbox) -> bool {
        tcp_by_port(self.host, "127.0.0.1:8080", (pod, 80)).is_some()
    }
}

#[track_caller]
fn quickly(invocation: &Invocation) {
    let start = Instant::now();
    assert_eq!(invocation.ok(), Value::Null);
    assert!(start.elapsed() < Duration::from_secs(1), "it waits");
}

#[test]
fn the_successor_has_the_port_as_soon_as_del_gave_it_back() {
    let host = Host::new();
    let every = ["8080:80", "8080:80"];
    for held in [
        every,
        ["127.0.0.1:8080:80", "8080:80"],
        ["8080:80", "127.0.0.1:8080:80"],
    ] {
        let pods = Pods::new(&host, held);
        let mut deleted = Duration::ZERO;
        let start = Instant::now();
        let (outcome, took) = pods.add_beside(|| {
            quickly(&pods.ports.forgotten(&pods.old));
            deleted = start.elapsed();
        });
        outcome.ok();
        println!("DEL ended after {deleted:?}, ADD after {took:?}");
        assert!(
            took < deleted + Duration::from_secs(1),
            "{deleted:?}, {took:?}"
        );
        assert!(pods.serves(&pods.new));
        pods.asks.del(&pods.new);
        for pod in [&pods.old, &pods.new] {
            pods.ports.bridge().del(pod);
            pod.remove();
        }
    }
}

#[test]
fn a_holder_that_stays_keeps_the_port() {
    let host = Host::new();
    let pods = Pods::new(&host, ["8080:80", "8080:80"]);
    let start = Instant::now();
    let refusal = pods.asks.on("ADD", &pods.new).error();
    let took = start.elapsed();
    refusal.expect(11, &["cni:pods/old/eth0", "try again later"]);
    assert!(took > Duration::from_millis(2_900), "{took:?}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(pods.serves(&pods.old));
}

/// Other attachments' verbs need locks that an ADD could hold.
#[test]
fn an_add_that_waits_holds_no_other_verb_up() {
    let host = Host::new();
    let pods = Pods::new(&host, ["8080:80", "8080:80"]);
    let other = host.sandbox("other");
    let ports = host.ports().named("others");
    let ports = ports.with_bridge("bridge", "cni1");
    let ports = ports.with_bridge(
        "ipam.ranges",
        serde_json::json!([[{"subnet": "10.2.0.0/24"}]]),
    );
    let portmap = ports.add(&other, &["9090:90"]);
    let (outcome, _) = pods.add_beside(|| {
        quickly(&portmap.on("RELOAD", &other));
        quickly(&portmap.on("CHECK", &other));
        quickly(&portmap.gc(&[]));
        quickly(&pods.ports.forgotten(&pods.old));
    });
    outcome.ok();
    assert!(pods.serves(&pods.new));
}

#[test]
fn a_holder_that_is_gone_is_not_waited_for() {
    let host = Host::new();
    let pods = Pods::new(&host, ["8080:80", "8080:80"]);
    host.end(&pods.old);
    let start = Instant::now();
    pods.asks.add(&pods.new);
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    assert!(pods.serves(&pods.new));
}

/// A RELOAD excludes DEL, so it must not wait for one.
#[test]
fn a_reload_does_not_wait() {
    let host = Host::new();
    let pods = Pods::new(&host, ["8080:80", "9090:80"]);
    pods.asks.add(&pods.new);
    let reload = Ports::asking(&pods.asks, &["8080:80"]).on("RELOAD", &pods.new);
    let start = Instant::now();
    reload.error().expect(11, &["cni:pods/old/eth0"]);
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
}
