//! macvlan beside the reference's.

use serde_json::{Value, json};
use tests::{Host, Place as _};

/// Removes what the two implementations choose differently.
fn without_mac(mut result: Value) -> Value {
    result["interfaces"][0]["mac"] = Value::Null;
    // The reference prints an empty object.
    let keys = result.as_object_mut().unwrap();
    keys.retain(|_, value| *value != json!({}));
    result
}

#[test]
fn results_are_those_of_the_reference() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.card();
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}]);
    let with_routes = network.clone().with("ipam.routes", routes);
    let layer_2 = network.clone().without("ipam").with("mtu", 1400);
    for network in [with_routes, layer_2] {
        let both = [network.clone(), network.by_reference()].map(|network| {
            let result = network.add(&a);
            let state = (
                a.addresses("eth0"),
                a.ip("route"),
                a.link("eth0")["mtu"].clone(),
            );
            network.del(&a);
            host.sh("rm -rf /run/test/leases/pods");
            (without_mac(result), state)
        });
        assert_eq!(both[0], both[1]);
    }
}

#[test]
fn each_checks_and_removes_what_the_other_attached() {
    let host = Host::new();
    let ours = host.card();
    let pairs = [
        (ours.clone(), ours.by_reference()),
        (ours.by_reference(), ours),
    ];
    for (number, (one, other)) in pairs.iter().enumerate() {
        let a = host.sandbox(&format!("a{number}"));
        let result = one.add(&a);
        other.check(&a, &result).ok();
        assert!(a.pings("10.1.0.1"));
        other.del(&a);
        assert!(a.links() == ["lo"] && host.leases("pods").is_empty());
        // The other implementation may leave the record, and nothing depends on it.
        let again = one.add(&a);
        one.check(&a, &again).ok();
        one.del(&a);
        a.remove();
    }
}
