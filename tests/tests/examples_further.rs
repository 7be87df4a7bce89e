//! Examples of the plugins that other networks than the cluster's use.

use std::path::Path;

use tests::dhcp::Daemon;
use tests::{Dnsmasq, Example, Host, Machine, Opening, Place as _, eventually};

#[test]
fn dhcp_gives_addresses_of_a_server() {
    let host = Host::new();
    host.ip("link add cni14 type bridge");
    host.ip("address add 10.80.14.1/24 dev cni14");
    host.ip("link set cni14 up");
    let range = "--dhcp-range=10.80.14.50,10.80.14.60,255.255.255.0";
    let _server = Dnsmasq::start(
        &host,
        "cni14",
        &[range, "--dhcp-authoritative", "--no-ping"],
    );
    let _daemon = Daemon::spawn(&host, &host.plugin("dhcp").argument("daemon"));
    let listens = || Path::new("/run/cni/dhcp.sock").exists();
    assert!(eventually(listens));
    let pods = Example::list(&host, "dhcp.conflist").pods();
    pods.reach_each_other(1).detach();
}

#[test]
fn macvlan_gives_addresses_in_the_network_of_the_card() {
    let host = Host::new();
    let router = host.outside();
    router.ip("address add 10.80.16.1/24 dev outside");
    host.ip("route add default via 192.0.2.2");
    let example = Example::list(&host, "macvlan.conflist");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    for pod in [&a, &b] {
        example.on("add", pod).ok();
        example.on("check", pod).ok();
    }
    assert!(a.pings("10.80.16.1") && a.pings("10.80.16.101") && a.pings("192.0.2.2"));
    for pod in [&a, &b] {
        example.on("del", pod).ok();
        assert_eq!(pod.links(), ["lo"]);
    }
}

#[test]
fn tap_is_opened_by_its_user() {
    let host = Host::new();
    let a = host.sandbox("a");
    let example = Example::list(&host, "tap.conflist");
    example.on("add", &a).ok();
    let (user, queues) = (107, Some(2));
    let _machine = Machine::start(&host, &a, Opening { user, queues }).unwrap();
    assert!(eventually(|| a.pings("10.80.17.9")));
    example.on("check", &a).ok();
    example.on("del", &a).ok();
    assert_eq!(a.links(), ["lo"]);
}

/// The card of the stand-in has another network at its other end.
#[test]
fn host_device_gives_a_card_and_takes_it_back() {
    let host = Host::new();
    drop(host.nic());
    host.ip("address add 10.80.15.1/24 dev switch");
    let before = host.snapshot();
    let example = Example::list(&host, "host-device.conflist");
    let a = host.sandbox("a");
    example.on("add", &a).ok();
    assert!(a.pings("10.80.15.1"));
    example.on("check", &a).ok();
    example.on("del", &a).ok();
    assert!(
        host.snapshot()
            .differences(&before)
            .iter()
            .all(|it| it.contains("/var/lib/cni"))
    );
    assert!(host.has_link("ens5"));
}

#[test]
fn sbr_gives_network_by_a_table_for_each_address() {
    let host = Host::new();
    let pods = Example::list(&host, "sbr.conflist").pods();
    let table = pods.a.ip("-6 route show table 101");
    assert!(table.contains("default via fd00:80:0:13::1"), "{table}");
    assert_eq!(pods.a.default_gateways(), Vec::<String>::new());
    pods.detach();
}
