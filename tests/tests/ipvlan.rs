//! ipvlan: traffic with the MAC of the master, modes, and addresses of earlier plugins.

use serde_json::{Value, json};
use tests::dhcp::{DISCOVER, Daemon, RELEASE, Server, on_card};
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
fn mode_of_other_pods_on_the_master_is_not_changed() {
    let host = Host::new();
    host.outside().ip("address add 10.1.0.1/24 dev outside");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = network(&host);
    network.add(&a);
    let other = network.clone().with("name", "others").with("mode", "l3");
    let refused = other.on("ADD", &b).error();
    refused.expect(7, &["mode", "cni:pods/a/eth0 has ipvlan in mode l2"]);
    assert!(a.pings("10.1.0.1") && !b.has_link("eth0"));
    network.del(&a);
    other.add(&b);
    // A link in a sandbox has its own mode, whatever its name, unless it is above one of the host.
    let c = host.sandbox("c");
    host.ip("link add eth0 type dummy");
    host.ip("link set eth0 up");
    let same_name = other.clone().with("master", "eth0").with("name", "named");
    same_name.on("ADD", &c).ifname("net1").ok();
    host.bridge_v4().add(&c);
    let inner = |mode: &str, master: &str| {
        let network = network.clone().with("name", "inner").with("mode", mode);
        network.with("master", master).with("linkInContainer", true)
    };
    let add = |inner: Network<'_>, name: &str| inner.on("ADD", &c).ifname(name).run();
    add(inner("l2", "eth0"), "net2").ok();
    let refused = inner("l3s", "eth0").on("ADD", &c).ifname("net3").error();
    refused.expect(7, &["cni:inner/c/net2 has ipvlan in mode l2"]);
    let refused = inner("l2", "net1").on("ADD", &c).ifname("net3").error();
    refused.expect(7, &["cni:named/c/net1 has ipvlan in mode l3"]);
    add(inner("l3", "net1"), "net3").ok();
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

/// All pods have the master's MAC, so the server distinguishes them by the client identifier alone, and
/// no answer to the MAC would reach a pod without an address.
#[test]
fn pods_lease_different_addresses_although_they_share_a_mac() {
    let host = Host::new();
    let network = on_card(&host, "ipvlan");
    let server = Server::leasing(&[[10, 6, 0, 50], [10, 6, 0, 51]], 60);
    let _daemon = Daemon::start(&host);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let results = [&a, &b].map(|pod| network.add(pod));
    assert!(a.pings("10.6.0.1") && a.pings("10.6.0.51"));
    for (pod, result) in [&a, &b].into_iter().zip(&results) {
        network.check(pod, result).ok();
        let client = format!("\0{}/pods/eth0", pod.name());
        let query = server.sees(|it| it.kind == DISCOVER && it.text(61) == client);
        assert_eq!(query.mac(), host.mac("card"));
        assert!(query.broadcast);
    }
    network.del(&a);
    let released = server.sees(|it| it.kind == RELEASE);
    assert_eq!(released.from.ip().octets(), [10, 6, 0, 50]);
    network.check(&b, &results[1]).ok();
    assert!(b.pings("10.6.0.1"));
}
