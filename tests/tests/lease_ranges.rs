//! host-local: names that are too long for a file.

use serde_json::Value;
use tests::Host;

/// No file can have a name of 256 bytes, so there is no lease, and DEL must not fail for ever.
#[test]
fn del_and_gc_succeed_for_a_name_that_is_too_long_for_a_file() {
    let host = Host::new();
    let long = "n".repeat(256);
    let pod = host.sandbox("a");
    for network in [host.host_local(), host.bridge(), host.ptp()] {
        let unnamed = network.clone().with("name", long.clone());
        unnamed.on("ADD", &pod).error();
        unnamed.del(&pod);
        unnamed.gc(&[]).ok();
        let add = network.on("ADD", &pod).container(&long).run();
        let del = network.on("DEL", &pod).container(&long);
        assert_eq!(del.ok(), Value::Null, "{add:?}");
        assert!(host.leases("pods").is_empty());
    }
}
