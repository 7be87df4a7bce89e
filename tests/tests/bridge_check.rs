//! bridge CHECK, STATUS and GC: they detect changes and leave existing attachments alone.

use serde_json::{Value, json};
use tests::{Host, Place as _, Sandbox, eventually};

/// Attaches a sandbox with routes, and returns the result of its ADD.
fn attached(host: &Host) -> (Sandbox, Value) {
    let a = host.sandbox("a");
    let result = network(host).add(&a);
    (a, result)
}

fn network(host: &Host) -> tests::Network<'_> {
    let network = host
        .bridge()
        .with("cniVersion", "1.1.0")
        .with("hairpinMode", true);
    network.with(
        "ipam.routes",
        json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]),
    )
}

/// Checks that CHECK fails after `change` and mentions `word`.
#[track_caller]
fn finds(word: &str, change: impl Fn(&Host, &Sandbox, &str)) {
    let host = Host::new();
    let (a, result) = attached(&host);
    let check = network(&host).check(&a, &result);
    assert_eq!(check.ok(), Value::Null);
    change(&host, &a, result["interfaces"][1]["name"].as_str().unwrap());
    let before = host.snapshot();
    let refusal = check.error();
    assert!(
        refusal.mentions(word),
        "{word:?} is not mentioned: {refusal:?}"
    );
    host.snapshot().assert_same_as(&before);
}

/// The kernel would join two IPv6 routes of the same metric to one.
#[test]
fn ipv6_routes_of_two_interfaces_may_ask_for_the_same_metric() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = |name: &str, bridge: &str, subnet: &str| {
        let network = host.bridge().with("name", name).with("bridge", bridge);
        let network = network.with("ipam.ranges", json!([[{"subnet": subnet}]]));
        network.with("ipam.routes", json!([{"dst": "::/0", "priority": 100}]))
    };
    network("first", "cni0", "fd00:1::/64").add(&a);
    let second = network("second", "cni1", "fd00:2::/64");
    let result = second.on("ADD", &a).ifname("net1").ok();
    let second = second.with("prevResult", result);
    second.on("CHECK", &a).ifname("net1").ok();
    a.ip("-6 route del default dev net1");
    let check = second.on("CHECK", &a).ifname("net1");
    check.error().expect(100, &["net1 lacks the route to ::/0"]);
}

#[test]
fn check_succeeds_in_every_version_that_has_it() {
    let host = Host::new();
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let a = host.sandbox(version);
        let network = network(&host).with("cniVersion", version);
        let result = network.add(&a);
        assert_eq!(network.check(&a, &result).ok(), Value::Null);
        network.del(&a);
    }
}

#[test]
fn check_finds_a_container_link_that_is_gone() {
    finds("eth0", |_, a, _| {
        a.ip("link delete eth0");
    });
}

#[test]
fn check_finds_a_container_link_that_is_down() {
    finds("eth0", |_, a, _| {
        a.ip("link set eth0 down");
    });
}

#[test]
fn check_finds_a_mac_that_changed() {
    finds("02:00:00:00:00:01", |_, a, _| {
        a.ip("link set eth0 address 02:00:00:00:00:01");
    });
}

#[test]
fn check_finds_an_address_that_is_gone() {
    finds("10.1.0.2", |_, a, _| {
        a.ip("address delete 10.1.0.2/24 dev eth0");
    });
    finds("fd00:1::2", |_, a, _| {
        a.ip("address delete fd00:1::2/64 dev eth0");
    });
}

#[test]
fn check_finds_a_route_that_is_gone() {
    finds("0.0.0.0/0", |_, a, _| {
        a.ip("route delete default");
    });
    finds("::/0", |_, a, _| {
        a.ip("-6 route delete default");
    });
}

#[test]
fn check_finds_a_host_link_that_left_the_bridge() {
    finds("cni0", |host, _, link| {
        host.ip(&format!("link set {link} nomaster"));
    });
}

#[test]
fn check_finds_a_host_link_that_is_down() {
    finds("veth", |host, _, link| {
        host.ip(&format!("link set {link} down"));
    });
}

#[test]
fn check_finds_a_bridge_that_is_gone() {
    finds("cni0", |host, _, _| {
        host.ip("link delete cni0");
    });
}

#[test]
fn check_finds_a_gateway_address_that_is_gone() {
    finds("10.1.0.1", |host, _, _| {
        host.ip("address delete 10.1.0.1/24 dev cni0");
    });
}

#[test]
fn check_finds_forwarding_that_was_switched_off() {
    finds("forward", |host, _, _| {
        host.set_sysctl("net/ipv4/ip_forward", "0");
    });
}

#[test]
fn check_finds_a_lease_that_is_gone() {
    finds("", |host, _, _| {
        std::fs::remove_file(host.lease_dir().join("pods/10.1.0.2")).unwrap();
    });
}

#[test]
fn check_finds_a_sandbox_that_is_gone() {
    // The links disappear a little later than the file.
    let gone = |host: &Host, link: &str| assert!(eventually(|| !host.has_link(link)));
    finds("/run/netns/a", |host, a, link| {
        a.remove();
        gone(host, link);
    });
    finds("/run/netns/a", |host, a, link| {
        a.unmount();
        gone(host, link);
    });
}

#[test]
fn check_needs_the_result() {
    let host = Host::new();
    let (a, _) = attached(&host);
    let refusal = network(&host).on("CHECK", &a).error();
    refusal.expect(7, &["prevResult"]);
}

#[test]
fn check_ignores_what_was_added_later() {
    let host = Host::new();
    let (a, result) = attached(&host);
    a.ip("address add 10.77.0.1/24 dev eth0");
    a.ip("route add 10.78.0.0/16 via 10.1.0.1");
    a.ip("link add other type veth peer name rehto");
    host.ip("address add 10.79.0.1/24 dev cni0");
    assert_eq!(network(&host).check(&a, &result).ok(), Value::Null);
}

#[test]
fn status_is_the_delegates() {
    let host = Host::new();
    assert_eq!(network(&host).call("STATUS").ok(), Value::Null);
    let dir = host.dir().join("read-only");
    std::fs::create_dir(&dir).unwrap();
    host.read_only(&dir);
    let without_leases = network(&host).with("ipam.dataDir", dir.to_str());
    without_leases
        .call("STATUS")
        .error()
        .expect(50, &[dir.to_str().unwrap()]);
    assert_eq!(host.links(), ["lo"], "STATUS makes no bridge");
}

#[test]
fn status_refuses_a_configuration_that_add_would_refuse() {
    let host = Host::new();
    let both = network(&host).with("hairpinMode", true);
    let refusal = both.with("promiscMode", true).call("STATUS").error();
    refusal.expect(7, &["promiscMode"]);
    network(&host)
        .with("ipam.type", "plugh")
        .call("STATUS")
        .error();
}

#[test]
fn gc_removes_links_and_leases_of_attachments_that_are_not_listed() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let network = network(&host);
    network.add(&a);
    network.add(&b);
    let other = network.clone().with("name", "other");
    other
        .with("ipam.ranges", json!([[{"subnet": "fd00:2::/64"}]]))
        .add(&c);
    let before = host.snapshot();
    network.gc(&[&a, &b]).ok();
    host.snapshot().assert_same_as(&before);
    network.gc(&[&b]).ok();
    assert_eq!(a.links(), ["lo"]);
    assert!(b.pings("10.1.0.1") && b.pings("fd00:1::1") && c.has_link("eth0"));
    assert!(
        host.leases("pods")
            .values()
            .all(|holder| holder.starts_with("b\r"))
    );
    network
        .with_key("cni.dev/valid-attachments", Value::Null)
        .call("GC")
        .ok();
    assert_eq!(
        b.links(),
        ["lo"],
        "an empty list means that everything is stale"
    );
    assert!(c.has_link("eth0") && host.leases("pods").is_empty());
}

#[test]
fn gc_without_a_list_is_refused_and_removes_nothing() {
    let host = Host::new();
    let (a, _) = attached(&host);
    let before = host.snapshot();
    let refusal = network(&host).call("GC").error();
    refusal.expect(7, &["cni.dev/valid-attachments"]);
    host.snapshot().assert_same_as(&before);
    assert!(a.pings("10.1.0.1"));
}
