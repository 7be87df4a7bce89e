//! bridge: `ipMasq`, observed from another host.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};
use tests::traffic::{client_seen, udp};
use tests::{Host, Network, Place as _, Sandbox};

fn network(host: &Host) -> Network<'_> {
    host.bridge()
        .with("isDefaultGateway", true)
        .with("ipMasq", true)
}

/// Returns another host without a route to the containers, with an address in a second network.
fn outside(host: &Host) -> Sandbox {
    let outside = host.outside_of_both_families();
    outside.ip("address add 198.51.100.1/32 dev lo");
    host.ip("route add 198.51.100.0/24 via 192.0.2.2");
    outside
}

#[test]
fn pods_leave_from_the_hosts_address_in_both_families() {
    let host = Host::new();
    let outside = outside(&host);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    network(&host).add(&a);
    network(&host).add(&b);
    assert_eq!(client_seen(&a, &outside, "192.0.2.2"), "192.0.2.1");
    assert_eq!(client_seen(&b, &outside, "2001:db8::2"), "2001:db8::1");
    assert!(udp(&a, &outside, "192.0.2.2") && udp(&b, &outside, "2001:db8::2"));
    assert_eq!(client_seen(&a, &b, "10.1.0.3"), "10.1.0.2");
    assert_eq!(client_seen(&a, &b, "fd00:1::3"), "fd00:1::2");
    assert_eq!(client_seen(&a, &host, "10.1.0.1"), "10.1.0.2");
}

#[test]
fn a_pod_of_another_network_is_not_masqueraded() {
    let host = Host::new();
    let outside = outside(&host);
    outside.ip("route add 10.2.0.0/24 via 192.0.2.1");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    network(&host).add(&a);
    let other = network(&host)
        .with("name", "other")
        .with("bridge", "cni1")
        .with("ipMasq", false)
        .with("ipam.ranges", json!([[{"subnet": "10.2.0.0/24"}]]));
    other.add(&b);
    assert_eq!(client_seen(&a, &outside, "192.0.2.2"), "192.0.2.1");
    assert_eq!(client_seen(&b, &outside, "192.0.2.2"), "10.2.0.2");
}

#[test]
fn packets_to_an_exempt_network_keep_their_address() {
    let host = Host::new();
    let outside = outside(&host);
    outside.ip("route add 10.1.0.0/24 via 192.0.2.1");
    outside.ip("-6 route add fd00:1::/64 via 2001:db8::1");
    let a = host.sandbox("a");
    let network = network(&host).with(
        "nonMasqueradeCIDRs",
        json!(["192.0.2.7/24", "2001:db8::/32"]),
    );
    let result = network.add(&a);
    assert_eq!(client_seen(&a, &outside, "192.0.2.2"), "10.1.0.2");
    assert_eq!(client_seen(&a, &outside, "2001:db8::2"), "fd00:1::2");
    assert_eq!(client_seen(&a, &outside, "198.51.100.1"), "192.0.2.1");
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
}

#[test]
fn multicast_on_the_bridge_keeps_its_address() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    network(&host).add(&a);
    network(&host).add(&b);
    // The sysctl does not exist without br_netfilter.
    let is_seen = host.sysctl("net/bridge/bridge-nf-call-iptables");
    assert_ne!(is_seen.as_deref(), Some("0"));
    let group = "224.0.0.251".parse().unwrap();
    let hearing = b.enter(|| UdpSocket::bind("0.0.0.0:5353").unwrap());
    b.enter(|| {
        hearing
            .join_multicast_v4(&group, &"10.1.0.3".parse().unwrap())
            .unwrap();
    });
    hearing
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let calling = a.enter(|| UdpSocket::bind("10.1.0.2:0").unwrap());
    a.enter(|| calling.send_to(b"query", "224.0.0.251:5353").unwrap());
    let (_, from) = hearing.recv_from(&mut [0; 16]).unwrap();
    assert_eq!(from, calling.local_addr().unwrap());
}

/// Returns the source port that `outside` sees, and the one that the container chose.
fn ports(a: &Sandbox, outside: &Sandbox) -> (u16, u16) {
    let listening = outside.enter(|| TcpListener::bind("192.0.2.2:0").unwrap());
    let target: SocketAddr = listening.local_addr().unwrap();
    let calling = a.enter(|| TcpStream::connect_timeout(&target, Duration::from_secs(2)).unwrap());
    let (_, from) = listening.accept().unwrap();
    (from.port(), calling.local_addr().unwrap().port())
}

#[test]
fn ports_are_random_by_default() {
    let host = Host::new();
    let outside = outside(&host);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    network(&host).add(&a);
    network(&host).with("ipMasqRandomFully", false).add(&b);
    let pairs: Vec<_> = (0..4).map(|_| ports(&a, &outside)).collect();
    assert!(pairs.iter().any(|(seen, own)| seen != own), "{pairs:?}");
    let pairs: Vec<_> = (0..4).map(|_| ports(&b, &outside)).collect();
    assert!(pairs.iter().all(|(seen, own)| seen == own), "{pairs:?}");
}

#[test]
fn del_removes_what_add_made_even_without_a_namespace() {
    let host = Host::new();
    let outside = outside(&host);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    network(&host).add(&a);
    network(&host).add(&b);
    let listed = host.rules_from("inet cni-masquerade");
    for owner in ["cni:pods/a/eth0", "cni:pods/b/eth0"] {
        assert!(listed.contains(owner), "{listed}");
    }
    assert_eq!(
        listed.matches("chain policy-").count(),
        2,
        "shared, with its base chain: {listed}"
    );
    a.unmount();
    let nothing_known = network(&host).without("ipMasq");
    nothing_known.on("DEL", &a).without("CNI_NETNS").ok();
    let listed = host.rules_from("inet cni-masquerade");
    assert!(!listed.contains("cni:pods/a/"), "{listed}");
    assert_eq!(client_seen(&b, &outside, "192.0.2.2"), "192.0.2.1");
    nothing_known.del(&b);
    let listed = host.rules_from("inet cni-masquerade");
    assert!(
        !listed.contains("cni:") && !listed.contains("policy-"),
        "{listed}"
    );
}

#[test]
fn gc_removes_elements_of_unlisted_attachments_of_this_network() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    network(&host).add(&a);
    network(&host).add(&b);
    let other = network(&host).with("name", "podsx").with("bridge", "cni1");
    other
        .with("ipam.ranges", json!([[{"subnet": "10.2.0.0/24"}]]))
        .add(&c);
    let outcome = network(&host).gc(&[&a]).run();
    outcome.ok();
    assert!(outcome.stderr.contains("cni:pods/b/eth0"), "{outcome:?}");
    let listed = host.rules_from("inet cni-masquerade");
    assert!(
        listed.contains("cni:pods/a/") && listed.contains("cni:podsx/c/"),
        "{listed}"
    );
    assert!(!listed.contains("cni:pods/b/"), "{listed}");
}

#[test]
fn check_reports_what_is_missing_and_the_next_add_repairs_it() {
    let host = Host::new();
    let outside = outside(&host);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = network(&host);
    let result = network.add(&a);
    let check = || network.check(&a, &result);
    assert_eq!(check().ok(), Value::Null);
    host.run(
        "nft",
        &["flush", "chain", "inet", "cni-masquerade", "postrouting"],
    );
    assert!(check().error().mentions("chain postrouting"));
    network.add(&b);
    assert_eq!(check().ok(), Value::Null);
    assert_eq!(client_seen(&a, &outside, "192.0.2.2"), "192.0.2.1");
    let element = [
        "delete",
        "element",
        "inet",
        "cni-masquerade",
        "pods4",
        "{ 10.1.0.2 }",
    ];
    host.run("nft", &element);
    assert!(check().error().mentions("cni:pods/a/eth0"));
    host.run("nft", &["flush", "ruleset"]);
    assert!(check().error().mentions("cni-masquerade"));
    network.del(&b);
    network.add(&b);
    assert_eq!(client_seen(&b, &outside, "192.0.2.2"), "192.0.2.1");
}

/// The machine lost its leases but not its rules.
/// The kernel and the reference accept an IPv4 address with several prefix lengths.
#[test]
fn address_with_two_prefix_lengths_is_masqueraded_once() {
    let host = Host::new();
    let outside = outside(&host);
    let a = host.sandbox("a");
    let addresses = json!([
        {"address": "10.9.0.2/24", "gateway": "10.9.0.1"},
        {"address": "10.9.0.2/16", "gateway": "10.9.0.1"},
    ]);
    let routes = json!([{"dst": "0.0.0.0/0"}]);
    let ipam = json!({"type": "static", "addresses": addresses, "routes": routes});
    let reference = host.bridge().with("ipMasq", true).with("bridge", "br2");
    let reference = reference
        .with("isGateway", false)
        .with("ipam", ipam.clone());
    reference.by_reference().add(&host.sandbox("b"));
    host.ip("link delete br2");
    let bridge = network(&host).with("promiscMode", true);
    let bridge = bridge.with("macspoofchk", true);
    for network in [bridge, host.ptp().with("ipMasq", true)] {
        let network = network.with("ipam", ipam.clone());
        let result = network.add(&a);
        assert_eq!(result["ips"].as_array().unwrap().len(), 2, "{result}");
        assert_eq!(client_seen(&a, &outside, "192.0.2.2"), "192.0.2.1");
        network.check(&a, &result).ok();
        network.del(&a);
        assert!(!host.rules_from("inet cni-masquerade").contains("cni:pods"));
    }
}

#[test]
fn an_address_that_is_leased_again_belongs_to_its_new_holder() {
    let host = Host::new();
    let outside = outside(&host);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = network(&host);
    network.add(&a);
    std::fs::remove_dir_all(host.lease_dir()).unwrap();
    host.ip("link set cni0 down");
    a.ip("link delete eth0");
    host.ip("link set cni0 up");
    let result = network.add(&b);
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/24");
    network.del(&a);
    assert!(
        host.rules_from("inet cni-masquerade")
            .contains("cni:pods/b/eth0")
    );
    assert_eq!(client_seen(&b, &outside, "192.0.2.2"), "192.0.2.1");
}

#[test]
fn no_program_is_needed() {
    let host = Host::new();
    let outside = outside(&host);
    let a = host.sandbox("a");
    let network = network(&host);
    network.on("ADD", &a).env("PATH", "/nowhere").ok();
    assert_eq!(client_seen(&a, &outside, "192.0.2.2"), "192.0.2.1");
    network.on("DEL", &a).env("PATH", "/nowhere").ok();
    assert!(!host.rules_from("inet cni-masquerade").contains("cni:"));
}

#[test]
fn keys_without_effect_are_reported() {
    let host = Host::new();
    let a = host.sandbox("a");
    let idle = host
        .bridge()
        .with("nonMasqueradeCIDRs", json!(["10.0.0.0/8"]));
    for (network, words, is_said) in [
        (
            network(&host).with("ipMasqBackend", "iptables"),
            "the plugin uses nf_tables",
            true,
        ),
        (
            network(&host).with("ipMasqBackend", "nftables"),
            "nf_tables",
            false,
        ),
        (idle, "nothing without ipMasq", true),
    ] {
        let outcome = network.on("ADD", &a).run();
        outcome.ok();
        assert_eq!(outcome.stderr.contains(words), is_said, "{outcome:?}");
        network.del(&a);
    }
    for (key, value) in [
        ("ipMasqBackend", json!("ipvs")),
        ("nonMasqueradeCIDRs", json!(["10.0.0.0/33"])),
        ("nonMasqueradeCIDRs", json!("10.0.0.0/8")),
    ] {
        let refusal = network(&host).with(key, value).on("ADD", &a).error();
        refusal.expect(7, &[key]);
    }
}
