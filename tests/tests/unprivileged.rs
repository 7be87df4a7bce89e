//! Effects of unprivileged users on plugins, and plugins with few privileges. No verb waits for a
//! lock that another user's process can take, or needs a private /run.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Chain, EXECUTABLES, Host, Invocation, Place as _, Removal};

/// Runs the chain's verbs in the order of a pod's life.
fn life(chain: &Chain<'_>, host: &Host) {
    let a = host.sandbox("a");
    let mut result = Value::Null;
    for place in 0..chain.len() {
        result = in_time(&chain.call(place, "ADD", (&a, &result)));
    }
    for verb in ["CHECK", "RELOAD"] {
        for place in 0..chain.len() {
            let call = chain.call(place, verb, (&a, &result));
            let knows = verb == "CHECK" || chain.position("bandwidth") != Some(place);
            if knows {
                in_time(&call);
            }
        }
    }
    for removal in [Removal::Gc, Removal::Del] {
        for place in chain.order(removal) {
            in_time(&chain.removal(place, removal, (&a, &result)));
        }
    }
    assert_eq!(a.links(), ["lo"]);
}

/// Runs a call, which must succeed within a tenth of the time that it took with such locks.
fn in_time(call: &Invocation) -> Value {
    let start = Instant::now();
    let result = call.ok();
    let took = start.elapsed();
    assert!(
        took < PATIENCE,
        "{took:?}: {}",
        call.variable("CNI_COMMAND")
    );
    result
}

const PATIENCE: Duration = Duration::from_secs(2);

#[test]
fn a_process_that_holds_every_lock_it_can_open_delays_no_verb() {
    let host = Host::new();
    let chain = Chain::new(&host, &["bridge", "portmap", "bandwidth", "firewall"]);
    let chain = chain.with("bridge", "ipMasq", &json!(true));
    let warm = host.sandbox("warm");
    let result = chain.add(&warm).unwrap();
    let _locker = host.locker();
    assert!(
        std::fs::File::open(warm.path())
            .unwrap()
            .try_lock()
            .is_err()
    );
    chain.remove(Removal::Del, (&warm, &result)).unwrap();
    life(&chain, &host);
}

/// Another user may open a directory of plugins, and lock it.
#[test]
fn a_process_that_holds_every_lock_it_can_open_delays_no_installation() {
    let host = Host::new();
    let directory = host.dir().join("bin");
    std::fs::create_dir(&directory).unwrap();
    let _locker = host.locker();
    let opened = std::fs::File::open(&directory).unwrap();
    assert!(opened.try_lock().is_err());
    let install = host.plugin("cnitool").argument("install");
    let install = install.argument(&directory);
    install.under(&["timeout", "20"].map(str::to_owned)).ok();
    let installed = std::fs::read_dir(&directory).unwrap().count();
    assert_eq!(installed, EXECUTABLES.len());
}
