//! What others on the node can do without privilege, and what plugins can do without much of it: no verb
//! waits for a lock that another user's process can take, or needs a /run of its own.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Chain, Host, Invocation, Place as _, Removal};

/// The verbs of the chain in the order of a pod's life.
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

/// It succeeds, and takes less than a tenth of what it took while it waited for such locks.
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
    let chain = Chain::new(&host, &["bridge", "portmap", "bandwidth"]);
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
