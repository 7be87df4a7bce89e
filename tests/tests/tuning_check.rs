//! tuning: CHECK, and traffic behind a changed interface.

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Sandbox};

/// Returns the network with a MAC, the result of the chain, and the sandbox.
fn attached(host: &Host) -> (Network<'_>, Value, Sandbox) {
    let a = host.sandbox("a");
    let network = host.tuning().with("mac", MAC);
    let before = host.bridge().add(&a);
    let result = network.clone().with("prevResult", before).add(&a);
    (network, result, a)
}

const MAC: &str = "02:00:00:00:00:41";

#[test]
fn check_names_each_setting_that_differs() {
    let host = Host::new();
    let (network, result, a) = attached(&host);
    network.check(&a, &result).ok();
    for (change, back, words) in [
        ("mtu 1300", "mtu 1400", ["mtu is 1300", "not 1400"]),
        (
            "address 02:00:00:00:00:09",
            "address 02:00:00:00:00:41",
            ["02:00:00:00:00:09", MAC],
        ),
        ("promisc off", "promisc on", ["promisc is false", "true"]),
        (
            "allmulticast off",
            "allmulticast on",
            ["allmulti is false", "true"],
        ),
        ("txqueuelen 9", "txqueuelen 500", ["txQLen is 9", "500"]),
    ] {
        a.ip(&format!("link set eth0 {change}"));
        network.check(&a, &result).error().expect(100, &words);
        a.ip(&format!("link set eth0 {back}"));
        network.check(&a, &result).ok();
    }
    a.set_sysctl("net/ipv4/conf/eth0/arp_filter", "0");
    a.ip("link set eth0 mtu 1300");
    let refusal = network.check(&a, &result).error();
    refusal.expect(
        100,
        &["net.ipv4.conf.eth0.arp_filter", "\"0\"", "mtu is 1300"],
    );
    a.ip("link delete eth0");
    network.check(&a, &result).error().expect(100, &["eth0"]);
    network.on("CHECK", &a).error().expect(7, &["prevResult"]);
    let gone = network.check(&a, &result).netns("/run/netns/gone");
    gone.error().expect(4, &["CNI_NETNS"]);
}

#[test]
fn check_accepts_what_later_plugins_and_the_container_may_change() {
    let host = Host::new();
    let (network, mut result, a) = attached(&host);
    result["cniVersion"] = "1.1.0".into();
    let newest = network.with("cniVersion", "1.1.0");
    a.ip("link set eth0 address 02:00:00:00:00:09 mtu 1300");
    newest
        .check(&a, &result)
        .error()
        .expect(100, &["mtu", "mac"]);
    result["interfaces"][2]["mac"] = "02:00:00:00:00:09".into();
    result["interfaces"][2]["mtu"] = 1300.into();
    newest.check(&a, &result).ok();
    let without = newest
        .clone()
        .with("promisc", false)
        .with("allmulti", Value::Null);
    a.ip("link set eth0 promisc on");
    without.check(&a, &result).ok();
    let words = newest.with(
        "sysctl",
        json!({"net.ipv4.ip_local_port_range": "40000 41000"}),
    );
    a.set_sysctl("net/ipv4/ip_local_port_range", "40000 41000");
    words.check(&a, &result).ok();
}

#[test]
fn check_of_the_whole_chain_passes_behind_it() {
    let host = Host::new();
    let a = host.sandbox("a");
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let bridge = host.bridge().with("cniVersion", version);
        let tuning = host.tuning().with("cniVersion", version).with("mac", MAC);
        let result = tuning.clone().with("prevResult", bridge.add(&a)).add(&a);
        for network in [&bridge, &tuning] {
            network.check(&a, &result).ok();
        }
        if version < "1.1.0" {
            bridge.by_reference().check(&a, &result).ok();
        }
        tuning.del(&a);
        bridge.del(&a);
    }
}

#[test]
fn neighbours_reach_the_new_mac_at_once() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let before = host.bridge().add(&a);
    host.bridge().add(&b);
    let addresses = ["10.1.0.2", "fd00:1::2"];
    assert!(addresses.iter().all(|address| b.pings(address)));
    let neighbours = |place: &Sandbox| place.ip("neigh show to 10.1.0.2");
    let mac = a.mac("eth0");
    assert!(neighbours(&b).contains(&mac));
    host.tuning()
        .with("mac", MAC)
        .with("prevResult", before)
        .add(&a);
    assert!(neighbours(&b).contains(MAC), "{}", neighbours(&b));
    assert!(addresses.iter().all(|address| b.pings(address)));
    host.tuning().del(&a);
    assert!(neighbours(&b).contains(&mac), "{}", neighbours(&b));
    assert!(addresses.iter().all(|address| b.pings(address)));
}

#[test]
fn packets_have_the_mtu() {
    let host = Host::new();
    let a = host.sandbox("a");
    let before = host.bridge().add(&a);
    let largest = |size: &str| {
        let arguments = ["-c", "1", "-W", "2", "-M", "do", "-s", size, "10.1.0.1"];
        let ping = || std::process::Command::new("ping").args(arguments).output();
        a.enter(ping).unwrap().status.success()
    };
    assert!(largest("1472"));
    host.tuning().with("prevResult", before).add(&a);
    assert!(largest("1372") && !largest("1373"));
    host.tuning().del(&a);
    assert!(largest("1472"));
}
