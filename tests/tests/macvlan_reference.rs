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
