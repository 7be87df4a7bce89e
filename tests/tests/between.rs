//! Verbs that run between the steps of another verb for the same attachment. No lock separates
//! them.
//!
//! One verb is slow: strace(1) delays each of its messages to the kernel. The other starts as soon
//! as the slow one has sent a given number of messages.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;
use tests::faults::strace;
use tests::{Chain, Host, Invocation, Outcome, Place as _, Removal, Sandbox, at_once, eventually};

/// A run with delayed messages.
struct Slow {
    trace: PathBuf,
    call: Invocation,
}

impl Slow {
    fn new(call: Invocation, dir: &Path) -> Self {
        let trace = dir.join("slow");
        fs::remove_file(&trace).ok();
        let mut words = strace(&trace);
        for word in [
            "-e",
            "trace=sendto",
            "-e",
            "inject=sendto:delay_enter=30000",
        ] {
            words.push(word.to_owned());
        }
        let call = call.under(&words);
        Self { trace, call }
    }

    /// Runs it, and `other` beside it after `steps` messages or at its end. If it hangs, fails with
    /// its last messages.
    fn with<T>(&self, steps: usize, other: impl FnOnce() -> T) -> (Outcome, T) {
        thread::scope(|scope| {
            let slow = scope.spawn(|| self.call.run());
            let sent = || fs::read_to_string(&self.trace).unwrap_or_default();
            let is_there = || slow.is_finished() || sent().matches("sendto(").count() > steps;
            assert!(eventually(is_there));
            let other = other();
            let slow = slow.join().unwrap();
            let (code, sent) = (slow.status.code(), sent());
            let last: Vec<_> = sent.lines().rev().take(5).collect();
            assert_ne!(
                code,
                Some(TIMED_OUT),
                "{slow:?} its last messages: {last:#?}"
            );
            (slow, other)
        })
    }
}

/// Runs `work` on a host of its own for every second number of steps, two at a time. The slow verb
/// sends two or three messages while the quick one runs.
fn for_each_step(most: usize, work: impl Fn(usize) + Sync) {
    let steps: Vec<_> = (0..most).step_by(2).collect();
    for few in steps.chunks(2) {
        at_once(few, |steps| work(*steps));
    }
}

fn rules(host: &Host) -> String {
    host.run("nft", &["list", "ruleset"])
}

fn chain(host: &Host) -> Chain<'_> {
    let chain = Chain::new(host, &["bridge", "portmap", "bandwidth", "firewall"]);
    let chain = chain.with("bridge", "ipMasq", &true.into());
    chain.with("bridge", "macspoofchk", &true.into())
}

/// Returns a RELOAD of the plugin at `place`, which restores flushed rules.
fn reload(chain: &Chain<'_>, place: usize, on: (&Sandbox, &Value)) -> Invocation {
    chain.call(place, "RELOAD", on)
}

fn expect_nothing_left(host: &Host, what: &str) {
    let left = rules(host);
    assert!(!left.contains("cni:"), "{what}: {left}");
    assert!(!left.contains("\"cni0\""), "{what}: {left}");
    for plugin in ["portmap", "firewall"] {
        let records = fs::read_dir(format!("/run/cni/{plugin}")).unwrap().count();
        assert_eq!(records, 0, "{plugin}: {what}");
    }
}

/// Removes the attachment while a RELOAD is in progress.
fn removed_during_a_slow_reload(place: usize, removal: Removal, steps: usize) {
    let host = Host::new();
    let a = host.sandbox("a");
    let chain = chain(&host);
    let result = chain.add(&a).unwrap();
    host.run("nft", &["flush", "ruleset"]);
    let slow = Slow::new(reload(&chain, place, (&a, &result)), host.dir());
    let (_, removed) = slow.with(steps, || chain.remove(removal, (&a, &result)));
    removed.unwrap();
    expect_nothing_left(
        &host,
        &format!("{removal:?} after {steps} messages of RELOAD"),
    );
    assert_eq!(host.links(), ["cni0", "lo"]);
}

/// Runs RELOAD while a DEL or GC is in progress.
fn reloaded_during_a_slow_removal(place: usize, removal: Removal, steps: usize) {
    let host = Host::new();
    let a = host.sandbox("a");
    let chain = chain(&host);
    let result = chain.add(&a).unwrap();
    host.run("nft", &["flush", "ruleset"]);
    for later in (place + 1)..chain.len() {
        chain.removal(later, removal, (&a, &result)).ok();
    }
    let slow = Slow::new(chain.removal(place, removal, (&a, &result)), host.dir());
    let (removed, _) = slow.with(steps, || reload(&chain, place, (&a, &result)).run());
    removed.ok();
    let left = rules(&host);
    assert!(
        !left.contains("cni:"),
        "{removal:?} after {steps} messages: {left}"
    );
}

/// Status of timeout(1).
const TIMED_OUT: i32 = 124;

const BRIDGE: usize = 0;
const PORTMAP: usize = 1;
const FIREWALL: usize = 3;

#[test]
fn del_during_a_reload_of_bridge_leaves_no_element() {
    for_each_step(30, |steps| {
        removed_during_a_slow_reload(BRIDGE, Removal::Del, steps);
    });
}

#[test]
fn gc_during_a_reload_of_bridge_leaves_no_element() {
    for_each_step(30, |steps| {
        removed_during_a_slow_reload(BRIDGE, Removal::Gc, steps);
    });
}

#[test]
fn del_during_a_reload_of_portmap_leaves_no_port() {
    for_each_step(40, |steps| {
        removed_during_a_slow_reload(PORTMAP, Removal::Del, steps);
    });
}

#[test]
fn gc_during_a_reload_of_portmap_leaves_no_port() {
    for_each_step(40, |steps| {
        removed_during_a_slow_reload(PORTMAP, Removal::Gc, steps);
    });
}

#[test]
fn del_during_a_reload_of_firewall_leaves_no_permission() {
    for_each_step(30, |steps| {
        removed_during_a_slow_reload(FIREWALL, Removal::Del, steps);
    });
}

#[test]
fn gc_during_a_reload_of_firewall_leaves_no_permission() {
    for_each_step(30, |steps| {
        removed_during_a_slow_reload(FIREWALL, Removal::Gc, steps);
    });
}

#[test]
fn reload_during_a_del_or_gc_leaves_nothing() {
    for removal in [Removal::Del, Removal::Gc] {
        for place in [BRIDGE, PORTMAP, FIREWALL] {
            for_each_step(16, |steps| {
                reloaded_during_a_slow_removal(place, removal, steps);
            });
        }
    }
}

/// One of two concurrent ADDs of an attachment succeeds, and its result works.
#[test]
fn add_during_an_add_leaves_the_one_that_succeeds_alone() {
    for_each_step(24, |steps| {
        let host = Host::new();
        let a = host.sandbox("a");
        let chain = chain(&host);
        let add = chain.call(BRIDGE, "ADD", (&a, &Value::Null));
        let slow = Slow::new(add.clone(), host.dir());
        let (one, other) = slow.with(steps, || add.run());
        let (won, lost) = match (one.status.success(), other.status.success()) {
            (true, false) => (one, other),
            (false, true) => (other, one),
            _ => panic!("after {steps} messages: {one:#?} {other:#?}"),
        };
        lost.error().expect(100, &["already"]);
        let result = won.ok();
        chain.check_first(1, (&a, &result)).unwrap();
        assert!(a.pings("10.1.0.1"), "{steps}");
        assert_eq!(host.leases("pods").len(), 2, "{steps}");
        chain.removal(BRIDGE, Removal::Del, (&a, &result)).ok();
        assert!(host.leases("pods").is_empty());
        assert!(!rules(&host).contains("cni:"));
    });
}
