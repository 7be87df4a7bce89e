//! macvlan beside the reference's, and beside other interfaces of one sandbox.

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Sandbox};

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

/// What a network has in a sandbox: its interface, and the result of ADD.
struct Part<'h> {
    network: Network<'h>,
    interface: &'static str,
    result: Value,
}

/// Attaches a sandbox as Multus does: the cluster's network first, then two of cards.
fn attach<'h>(host: &'h Host, a: &Sandbox) -> [Part<'h>; 3] {
    let card = host.card().with("name", "lan");
    let inner = host.card().with("name", "inner").without("ipam");
    let inner = inner.with("master", "net1").with("linkInContainer", true);
    let pods = host
        .ptp()
        .with("ipam.ranges", json!([[{"subnet": "10.9.0.0/24"}]]));
    let pods = pods.with("ipam.routes", json!([{"dst": "0.0.0.0/0"}]));
    [(pods, "eth0"), (card, "net1"), (inner, "net2")].map(|(network, interface)| {
        let result = network.on("ADD", a).ifname(interface).ok();
        Part {
            network,
            interface,
            result,
        }
    })
}

fn check(part: &Part<'_>, a: &Sandbox) {
    let network = part.network.clone().with("prevResult", part.result.clone());
    network.on("CHECK", a).ifname(part.interface).ok();
}

#[test]
fn interfaces_of_several_plugins_go_in_any_order() {
    let host = Host::new();
    for (number, order) in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]]
        .iter()
        .enumerate()
    {
        let a = host.sandbox(&format!("a{number}"));
        let parts = attach(&host, &a);
        assert!(a.pings("10.1.0.1") && a.pings("10.9.0.1"));
        for (done, place) in order.iter().enumerate() {
            for left in &order[done..] {
                // The kernel makes the inner link one of the card, so it outlives its master; but
                // its master's name is compared.
                if *left != 2 || !order[..done].contains(&1) {
                    check(&parts[*left], &a);
                }
            }
            let part = &parts[*place];
            part.network.on("DEL", &a).ifname(part.interface).ok();
            assert!(!a.has_link(part.interface));
        }
        assert_eq!(a.links(), ["lo"]);
    }
    let leases = ["pods", "lan"].map(|it| host.leases(it).len());
    assert_eq!(leases, [0, 0]);
}

#[test]
fn gc_of_one_network_leaves_the_others_of_a_sandbox() {
    let host = Host::new();
    let a = host.sandbox("a");
    let [pods, lan, inner] = attach(&host, &a);
    lan.network.gc(&[]).ok();
    assert!(!a.has_link("net1") && host.leases("lan").is_empty());
    assert!(a.has_link("net2") && a.pings("10.9.0.1"));
    check(&pods, &a);
    inner.network.gc(&[]).ok();
    assert_eq!(a.links().len(), 2, "lo and eth0");
    assert_eq!(host.leases("pods").len(), 1);
}
