//! loopback: every verb, and that the host's own `lo` never changes.

use serde_json::{Value, json};
use tests::{Host, Place, Sandbox};

fn is_up(place: &impl Place) -> bool {
    let flags = place.link("lo")["flags"].clone();
    flags.as_array().unwrap().contains(&json!("UP"))
}

/// Returns a sandbox in which ADD brought `lo` up.
fn attached(host: &Host) -> (Sandbox, Value) {
    let a = host.sandbox("a");
    let result = host.loopback().add(&a);
    assert!(is_up(&a));
    (a, result)
}

#[test]
fn add_brings_lo_up_and_reports_its_addresses() {
    let host = Host::new();
    let (a, result) = attached(&host);
    assert_eq!(a.addresses("lo"), ["127.0.0.1/8", "::1/128"]);
    assert!(a.pings("127.0.0.1") && a.pings("::1"));
    let lo = &result["interfaces"][0];
    assert_eq!(lo["name"], "lo");
    assert_eq!(lo["sandbox"], json!(a.path()));
    for (index, address) in ["127.0.0.1/8", "::1/128"].iter().enumerate() {
        assert_eq!(result["ips"][index]["address"], *address);
        assert_eq!(result["ips"][index]["interface"], 0);
    }
}

#[test]
fn add_where_ipv6_is_off_reports_ipv4_alone() {
    let host = Host::new();
    let a = host.sandbox("a");
    a.set_sysctl("net/ipv6/conf/all/disable_ipv6", "1");
    let result = host.loopback().add(&a);
    assert_eq!(a.addresses("lo"), ["127.0.0.1/8"]);
    assert_eq!(result["ips"].as_array().unwrap().len(), 1, "{result}");
}

#[test]
fn add_ignores_the_name_of_the_interface() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = host.loopback().on("ADD", &a).ifname("eth7").ok();
    assert_eq!(result["interfaces"][0]["name"], "lo");
    assert!(is_up(&a));
}

#[test]
fn add_twice_is_as_good_as_once() {
    let host = Host::new();
    let (a, first) = attached(&host);
    assert_eq!(host.loopback().add(&a), first);
}

#[test]
fn add_refuses_a_lo_with_a_foreign_address() {
    let host = Host::new();
    let a = host.sandbox("a");
    a.ip("address add 198.51.100.7/32 dev lo");
    let refusal = host.loopback().on("ADD", &a).error();
    assert!(refusal.mentions("198.51.100.7"), "{refusal:?}");
}

#[test]
fn prev_result_passes_through_with_unknown_keys() {
    let host = Host::new();
    let a = host.sandbox("a");
    let previous = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": a.path(), "vendor": 1}],
        "ips": [{"interface": 0, "address": "192.0.2.9/24", "gateway": "192.0.2.1"}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["192.0.2.53"]},
        "example.org/key": {"kept": true},
    });
    let network = host.loopback().with("prevResult", previous.clone());
    assert_eq!(network.add(&a), previous);
    assert!(is_up(&a));
}

#[test]
fn del_takes_lo_down_however_often_it_is_asked() {
    let host = Host::new();
    let (a, result) = attached(&host);
    host.loopback().with("prevResult", result).del(&a);
    assert!(!is_up(&a));
    host.loopback().del(&a);
}

#[test]
fn del_succeeds_when_the_sandbox_is_gone() {
    let host = Host::new();
    let (a, _) = attached(&host);
    let network = host.loopback();
    a.unmount();
    network.del(&a);
    network.on("DEL", &a).netns("/run/netns/never-was").ok();
    network.on("DEL", &a).netns("").ok();
    network.on("DEL", &a).without("CNI_NETNS").ok();
}

#[test]
fn del_succeeds_although_the_pod_has_renamed_lo() {
    let host = Host::new();
    let (a, _) = attached(&host);
    a.ip("link set lo down");
    a.ip("link set lo name other");
    assert_eq!(host.loopback().on("DEL", &a).ok(), Value::Null);
}

#[test]
fn del_with_the_hosts_own_namespace_leaves_its_lo_up() {
    let host = Host::new();
    let before = host.snapshot();
    let network = host.loopback();
    let a = host.sandbox("a");
    network.on("DEL", &a).netns("/proc/self/ns/net").ok();
    assert!(is_up(&host));
    host.snapshot().assert_same_as(&before);
}

#[test]
fn add_with_the_hosts_own_namespace_is_refused_unless_that_is_meant() {
    let host = Host::new();
    host.ip("link set lo down");
    let a = host.sandbox("a");
    let on_host = host.loopback().on("ADD", &a).netns("/proc/self/ns/net");
    on_host.error().expect(8, &["/proc/self/ns/net"]);
    assert!(!is_up(&host));
    on_host.clone().env("CNI_NETNS_OVERRIDE", "True").ok();
    assert!(is_up(&host));
}

#[test]
fn a_path_that_is_no_namespace_is_refused_and_named() {
    let host = Host::new();
    let file = host.dir().join("plain");
    std::fs::write(&file, "").unwrap();
    for path in [
        file.to_str().unwrap(),
        "/run/netns/never-was",
        "/dev/null",
        "/run",
    ] {
        let add = host
            .loopback()
            .call("ADD")
            .container("a")
            .ifname("lo")
            .netns(path);
        add.error().expect(4, &["CNI_NETNS", path]);
    }
}

#[test]
fn check_finds_lo_up_with_or_without_prev_result() {
    let host = Host::new();
    let (a, result) = attached(&host);
    let network = host.loopback();
    assert_eq!(network.on("CHECK", &a).ok(), Value::Null);
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
    a.ip("link set lo down");
    let refusal = network.check(&a, &result).error();
    assert!(refusal.mentions("lo"), "{refusal:?}");
    assert!(!is_up(&a), "CHECK changes nothing");
}

#[test]
fn check_of_a_sandbox_that_is_gone_is_an_error() {
    let host = Host::new();
    let (a, result) = attached(&host);
    a.remove();
    let refusal = host.loopback().check(&a, &result).error();
    assert!(refusal.mentions(a.path().to_str().unwrap()), "{refusal:?}");
}

#[test]
fn status_and_gc_succeed_and_change_nothing() {
    let host = Host::new();
    let (a, _) = attached(&host);
    let network = host.loopback();
    let newest = network.clone().with("cniVersion", "1.1.0");
    assert_eq!(newest.call("STATUS").ok(), Value::Null);
    assert_eq!(network.gc(&[]).ok(), Value::Null);
    assert!(is_up(&a));
}
