//! portmap: elements of attachments without a record, as in a saved ruleset that is loaded at boot.

use std::fs;

use tests::ports::rules;
use tests::traffic::tcp_by_port;
use tests::{Host, Network, Place as _, Ports, Sandbox};

/// Simulates a reboot: pod `a` had port 8080 in the previous boot, and only its elements are there.
fn rebooted(host: &Host) {
    let a = host.sandbox("before");
    let ports = host.ports();
    ports.add(&a, &["8080:80", "8081:80/udp"]);
    let saved = host.dir().join("nftables.conf");
    fs::write(&saved, host.run("nft", &["list", "ruleset"])).unwrap();
    host.end(&a);
    host.ip("link delete cni0");
    fs::remove_dir_all("/run/cni").unwrap();
    fs::remove_dir_all(host.lease_dir()).unwrap();
    host.run("nft", &["flush", "ruleset"]);
    host.run("nft", &["-f", saved.to_str().unwrap()]);
    assert!(rules(host).contains("cni:pods/before/eth0"));
}

fn forget_record(pod: &Sandbox) {
    fs::remove_file(format!("/run/cni/portmap/cni:pods:{}:eth0", pod.name())).unwrap();
}

#[track_caller]
fn expect_taken_over(host: &Host, asks: &Network<'_>, (pod, from): (&Sandbox, &str)) {
    let outcome = asks.on("ADD", pod).run();
    outcome.ok();
    let owner = format!("cni:pods/{from}/eth0");
    let said = outcome.stderr.contains(&owner) && outcome.stderr.contains("taken over");
    assert!(said, "{outcome:?}");
    assert!(!rules(host).contains(&owner), "{}", rules(host));
    assert!(tcp_by_port(host, "127.0.0.1:8080", (pod, 80)).is_some());
}

#[test]
fn ports_of_the_boot_before_are_free() {
    let host = Host::new();
    rebooted(&host);
    let b = host.sandbox("b");
    let asks = host.ports().attach(&b, &["8080:80"]);
    expect_taken_over(&host, &asks, (&b, "before"));
}

/// The target address of the port belongs to another pod now, or to none while other pods exist.
#[test]
fn ports_of_the_boot_before_are_free_beside_pods_of_this_one() {
    let host = Host::new();
    rebooted(&host);
    let ports = host.ports();
    let [b, c, d] = ["b", "c", "d"].map(|name| host.sandbox(name));
    ports.bridge().add(&b);
    ports.add(&c, &["9090:80"]);
    expect_taken_over(&host, &ports.attach(&d, &["8080:80"]), (&d, "before"));
    assert!(tcp_by_port(&host, "127.0.0.1:9090", (&c, 80)).is_some());
}

#[test]
fn a_live_pod_without_a_record_keeps_its_ports_by_its_link() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    ports.add(&a, &["8080:80"]);
    forget_record(&a);
    let asks = ports.attach(&b, &["8080:80"]);
    asks.on("ADD", &b).error().expect(11, &["cni:pods/a/eth0"]);
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
    host.end(&a);
    expect_taken_over(&host, &asks, (&b, "a"));
}

/// The reference's link has no tag.
#[test]
fn a_pod_that_the_reference_joined_keeps_its_ports_without_a_record() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    let result = ports.bridge().by_reference().add(&a);
    let portmap = ports.portmap().clone().with("prevResult", result);
    Ports::asking(&portmap, &["8080:80"]).add(&a);
    forget_record(&a);
    let asks = ports.attach(&b, &["8080:80"]);
    asks.on("ADD", &b).error().expect(11, &["cni:pods/a/eth0"]);
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
    host.end(&a);
    expect_taken_over(&host, &asks, (&b, "a"));
}

/// A link of its own leads to the pod's address, as with plugins that create no bridge.
#[test]
fn a_pod_behind_a_route_of_its_own_keeps_its_ports_without_a_record() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.ip("link add host-a type veth peer name eth0 netns a");
    host.ip("link set host-a up");
    host.ip("address add 10.9.0.1/32 dev host-a");
    host.ip("route add 10.9.0.2 dev host-a");
    a.ip("address add 10.9.0.2/32 dev eth0");
    a.ip("link set eth0 up");
    a.ip("route add 10.9.0.1 dev eth0");
    let ports = host.ports();
    let result = serde_json::json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": a.path()}],
        "ips": [{"address": "10.9.0.2/32", "interface": 0}],
    });
    let portmap = ports.portmap().clone().with("prevResult", result);
    Ports::asking(&portmap, &["8080:80"]).add(&a);
    forget_record(&a);
    let asks = ports.attach(&b, &["8080:80"]);
    asks.on("ADD", &b).error().expect(11, &["cni:pods/a/eth0"]);
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
    host.end(&a);
    expect_taken_over(&host, &asks, (&b, "a"));
}
