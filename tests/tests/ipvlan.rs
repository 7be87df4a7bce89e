//! ipvlan: traffic with the MAC of the master, modes, and addresses of earlier plugins.

use serde_json::{Value, json};
use tests::{Host, Network, Place as _};

fn network(host: &Host) -> Network<'_> {
    let ranges = json!([[{"subnet": "10.1.0.0/24"}]]);
    let network = host.single("ipvlan").with("master", "uplink");
    network.with("ipam.ranges", ranges)
}

#[test]
fn pods_have_the_masters_mac_and_reach_its_network_and_each_other() {
    let host = Host::new();
    host.outside().ip("address add 10.1.0.1/24 dev outside");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = network(&host);
    let result = network.add(&a);
    network.add(&b);
    let mac = host.mac("uplink");
    let expected = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "mac": mac, "sandbox": a.path()}],
        "ips": [{"interface": 0, "address": "10.1.0.2/24", "gateway": "10.1.0.1"}],
    });
    assert_eq!(result, expected);
    assert!(a.pings("10.1.0.1") && a.pings("10.1.0.3"));
    network.check(&a, &result).ok();
    network.del(&a);
    assert!(!a.has_link("eth0") && host.leases("pods").len() == 1);
}

#[test]
fn each_mode_is_set_and_compared() {
    let host = Host::new();
    host.outside();
    let a = host.sandbox("a");
    for mode in ["l2", "l3", "l3s"] {
        let network = network(&host).with("mode", mode);
        let result = network.add(&a);
        assert_eq!(a.link("eth0")["linkinfo"]["info_data"]["mode"], mode);
        network.check(&a, &result).ok();
        let other = network
            .clone()
            .with("mode", if mode == "l2" { "l3" } else { "l2" });
        let words = format!("ipvlan in mode {mode}");
        other.check(&a, &result).error().expect(100, &[&words]);
        network.del(&a);
    }
    let unknown = network(&host).with("mode", "l4");
    unknown.on("ADD", &a).error().expect(7, &["l4", "l3s"]);
}

#[test]
fn addresses_come_from_the_plugin_before_if_there_is_no_ipam() {
    let host = Host::new();
    host.outside().ip("address add 10.1.0.1/24 dev outside");
    let a = host.sandbox("a");
    let network = host.single("ipvlan").without("ipam");
    network
        .on("ADD", &a)
        .error()
        .expect(7, &["ipam", "needs addresses"]);
    let before = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "uplink"}],
        "ips": [{"address": "10.1.0.9/24", "interface": 0}],
        "routes": [{"dst": "192.0.2.0/24"}],
    });
    let chained = network.with("prevResult", before);
    let result = chained.add(&a);
    assert_eq!(
        result["ips"],
        json!([{"address": "10.1.0.9/24", "interface": 1}])
    );
    assert_eq!(result["routes"], json!([{"dst": "192.0.2.0/24"}]));
    assert!(a.pings("10.1.0.1"));
    let no_addresses = chained.with("prevResult.ips", Value::Array(Vec::new()));
    let b = host.sandbox("b");
    no_addresses.on("ADD", &b).error().expect(7, &["ipam"]);
}
