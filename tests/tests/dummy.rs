//! dummy: addresses of both families that lead nowhere.

use serde_json::json;
use tests::{Host, Place as _};

#[test]
fn sandbox_has_addresses_of_both_families_that_lead_nowhere() {
    let host = Host::new();
    let a = host.sandbox("a");
    a.ip("link set lo up");
    let network = host.single("dummy");
    let result = network.add(&a);
    let expected = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "mac": a.mac("eth0"), "sandbox": a.path()}],
        "ips": [
            {"interface": 0, "address": "10.1.0.2/24", "gateway": "10.1.0.1"},
            {"interface": 0, "address": "fd00:1::2/64", "gateway": "fd00:1::1"},
        ],
    });
    assert_eq!(result, expected);
    assert!(a.pings("10.1.0.2") && a.pings("fd00:1::2"));
    assert!(!a.pings("10.1.0.1"));
    assert_eq!(host.links(), ["lo"]);
    network.check(&a, &result).ok();
    a.ip("link set eth0 down");
    network.check(&a, &result).error().expect(100, &["is down"]);
    network.del(&a);
    assert!(a.links() == ["lo"] && host.leases("pods").is_empty());
}

#[test]
fn addresses_are_required() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.single("dummy").without("ipam");
    network
        .on("ADD", &a)
        .error()
        .expect(7, &["ipam", "needs addresses"]);
    assert_eq!(a.links(), ["lo"]);
}
