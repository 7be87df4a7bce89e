//! ptp: two attachments with one address for a while, as when a runtime recreates a pod before it
//! deletes the old one.

use serde_json::{Value, json};
use tests::result::ptp_host_link;
use tests::{Host, Network, Place as _, Sandbox};

const ADDRESSES: [&str; 2] = ["10.1.0.9", "fd00:1::9"];

/// Returns a network that leases the same addresses each time.
fn fixed(host: &Host) -> Network<'_> {
    let ips = json!([{"address": "10.1.0.9/24"}, {"address": "fd00:1::9/64"}]);
    let lease = json!({"cniVersion": "1.0.0", "ips": ips});
    host.script(
        "leases",
        &format!("[ $CNI_COMMAND != ADD ] || echo '{lease}'"),
    );
    host.ptp().with("ipam", json!({"type": "leases"}))
}

/// Checks that packets to the addresses arrive in `pod` and not elsewhere.
#[track_caller]
fn owns_the_addresses(host: &Host, pod: &Sandbox, result: &Value) {
    for address in ADDRESSES {
        let route = host.ip(&format!("route get {address}"));
        assert!(route.contains(ptp_host_link(result)), "{route}");
        assert!(host.pings(address), "{address} of {}", pod.name());
    }
    assert!(pod.pings("10.1.0.1") && pod.pings("fd00:1::1"));
}

#[test]
fn the_new_pod_has_the_address_and_keeps_it_when_the_old_one_is_deleted() {
    let host = Host::new();
    let [old, new] = ["old", "new"].map(|name| host.sandbox(name));
    let network = fixed(&host);
    let first = network.add(&old);
    owns_the_addresses(&host, &old, &first);
    let second = network.add(&new);
    owns_the_addresses(&host, &new, &second);
    assert_eq!(network.check(&new, &second).ok(), Value::Null);
    let refusal = network.check(&old, &first).error();
    assert!(
        refusal.mentions(ADDRESSES[0]) && refusal.mentions(ADDRESSES[1]),
        "{refusal:?}"
    );
    network.del(&old);
    owns_the_addresses(&host, &new, &second);
    assert_eq!(network.check(&new, &second).ok(), Value::Null);
    network.del(&new);
    assert_eq!(host.links(), ["lo"]);
}

#[test]
fn the_old_pod_has_the_address_again_when_the_new_one_is_deleted_or_fails() {
    let host = Host::new();
    let [old, new, failed] = ["old", "new", "failed"].map(|name| host.sandbox(name));
    let network = fixed(&host);
    let first = network.add(&old);
    let before = host.snapshot();
    network.add(&new);
    network.del(&new);
    host.snapshot().assert_same_as(&before);
    let routes = json!([{"dst": "10.9.0.0/16", "gw": "172.31.0.1"}]);
    let ips = json!([{"address": "10.1.0.9/24"}, {"address": "fd00:1::9/64"}]);
    let lease = json!({"cniVersion": "1.0.0", "ips": ips, "routes": routes});
    host.script(
        "leases",
        &format!("[ $CNI_COMMAND != ADD ] || echo '{lease}'"),
    );
    network
        .on("ADD", &failed)
        .error()
        .expect(100, &["172.31.0.1"]);
    host.snapshot().assert_same_as(&before);
    owns_the_addresses(&host, &old, &first);
    assert_eq!(network.check(&old, &first).ok(), Value::Null);
}

#[test]
fn the_newest_of_many_pods_has_the_address_whichever_order_they_leave_in() {
    let host = Host::new();
    let network = fixed(&host);
    let pods = ["a", "b", "c", "d"].map(|name| host.sandbox(name));
    let results = pods.each_ref().map(|pod| network.add(pod));
    for (leaves, remains) in [(1, 3), (3, 2), (0, 2)] {
        network.del(&pods[leaves]);
        owns_the_addresses(&host, &pods[remains], &results[remains]);
    }
}

#[test]
fn a_route_of_another_program_to_the_address_is_kept() {
    let host = Host::new();
    let _outside = host.outside_of_both_families();
    host.ip("route add 10.1.0.9/32 via 192.0.2.2");
    host.ip("route add fd00:1::9/128 via 2001:db8::2 metric 500");
    let before = host.snapshot();
    let a = host.sandbox("a");
    let network = fixed(&host);
    let result = network.add(&a);
    owns_the_addresses(&host, &a, &result);
    network.del(&a);
    let mut left = host.snapshot().differences(&before);
    // Forwarding stays on, with the kernel's anycast address of each link.
    left.retain(|it| !it.starts_with("sysctl ") && !it.contains("anycast"));
    assert_eq!(left, Vec::<String>::new());
}
