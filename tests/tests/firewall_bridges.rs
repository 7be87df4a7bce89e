//! firewall: `ingressPolicy` decides which bridges' pods reach each other.

use std::net::UdpSocket;
use std::time::Duration;

use serde_json::{Value, json};
use tests::escape::{Header, Way, datagram, pour};
use tests::traffic::tcp;
use tests::{Chain, Host, Network, Place as _, Sandbox, at_once, eventually};

/// A pod on a bridge, in a network of its own, with firewall.
struct Pod<'h> {
    sandbox: Sandbox,
    bridge: Network<'h>,
    firewall: Network<'h>,
    address: String,
}

impl<'h> Pod<'h> {
    /// Attaches a pod to bridge `cni<number>` with this policy.
    fn new(host: &'h Host, (number, name): (u8, &str), policy: &str) -> Self {
        let range = |it: String| json!([{"subnet": it}]);
        let v4 = range(format!("10.1.{number}.0/24"));
        let v6 = range(format!("fd00:{number}::/64"));
        let network = format!("net{number}");
        let bridge = host.bridge().with("isDefaultGateway", true);
        let bridge = bridge
            .with("name", network.as_str())
            .with("bridge", format!("cni{number}"));
        let bridge = bridge.with("ipam.ranges", json!([v4, v6]));
        let sandbox = host.sandbox(name);
        let result = bridge.add(&sandbox);
        let address = result["ips"][0]["address"].as_str().unwrap();
        let address = address.split('/').next().unwrap().to_owned();
        let firewall = host
            .bandwidth()
            .with("type", "firewall")
            .with("name", network.as_str());
        let firewall = firewall
            .with("ingressPolicy", policy)
            .with("prevResult", result);
        firewall.add(&sandbox);
        Self {
            sandbox,
            bridge,
            firewall,
            address,
        }
    }

    fn reaches(&self, other: &Pod<'_>) -> bool {
        tcp(&self.sandbox, &other.sandbox, &other.address).is_some()
    }

    /// Returns whether no packet passes between the pods, in either direction.
    fn is_apart_from(&self, other: &Pod<'_>) -> bool {
        let ways = [(self, other), (other, self)];
        at_once(&ways, |(from, to)| from.reaches(to)) == [false; 2]
    }

    fn check(&self) {
        let result = &self.firewall.config()["prevResult"];
        assert_eq!(self.firewall.check(&self.sandbox, result).ok(), Value::Null);
    }

    fn del(&self) {
        self.firewall.del(&self.sandbox);
        self.bridge.del(&self.sandbox);
    }
}

fn elements(host: &Host) -> String {
    let listed = host.run("nft", &["list", "ruleset"]);
    listed
        .lines()
        .filter(|it| it.contains("elements") || it.contains("cni:"))
        .collect()
}

#[test]
fn pods_of_bridges_with_a_policy_do_not_reach_each_other() {
    let host = Host::new();
    for policy in ["same-bridge", "isolated"] {
        let a = Pod::new(&host, (1, "a"), policy);
        let b = Pod::new(&host, (2, "b"), "same-bridge");
        let c = Pod::new(&host, (3, "c"), "open");
        assert!(a.is_apart_from(&b), "{policy}");
        // As with the reference, a bridge without a policy is open in both directions.
        assert!(a.reaches(&c) && c.reaches(&a), "{policy}");
        for pod in [&a, &b, &c] {
            pod.check();
            pod.del();
            pod.sandbox.remove();
        }
        assert_eq!(elements(&host), "");
    }
}

#[test]
fn pods_of_one_bridge_reach_each_other_with_same_bridge() {
    let host = Host::new();
    let a = Pod::new(&host, (1, "a"), "same-bridge");
    let b = Pod::new(&host, (1, "b"), "same-bridge");
    let c = Pod::new(&host, (2, "c"), "same-bridge");
    assert!(a.reaches(&b) && b.reaches(&a));
    // The bridge keeps its policy as long as it has a pod.
    a.del();
    assert!(c.is_apart_from(&b));
    b.check();
    b.del();
    assert!(!elements(&host).contains("cni1"), "{}", elements(&host));
    c.check();
}

#[test]
fn pods_of_one_bridge_do_not_reach_each_other_with_isolated() {
    let host = Host::new();
    let a = Pod::new(&host, (1, "a"), "isolated");
    let b = Pod::new(&host, (1, "b"), "isolated");
    assert!(a.is_apart_from(&b));
    // Without `br_netfilter`, frames within a bridge pass no hook of IP.
    for sysctl in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
        host.set_sysctl(&format!("net/bridge/{sysctl}"), "0");
    }
    host.ip("link set cni1 type bridge nf_call_iptables 0 nf_call_ip6tables 0");
    assert!(a.is_apart_from(&b));
    assert!(a.sandbox.pings("10.1.1.1") && a.sandbox.pings("fd00:1::1"));
    for sysctl in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
        host.set_sysctl(&format!("net/bridge/{sysctl}"), "1");
    }
    b.del();
    let c = Pod::new(&host, (1, "c"), "same-bridge");
    assert!(!a.reaches(&c), "the stricter policy holds for the bridge");
    a.del();
    let d = Pod::new(&host, (1, "d"), "same-bridge");
    assert!(c.reaches(&d));
}

/// Frames with a VLAN tag pass no hook of IP, and a receiver ignores the tag of VLAN 0.
#[test]
fn isolated_pods_of_one_bridge_receive_no_tagged_frames() {
    let host = Host::new();
    let a = Pod::new(&host, (1, "a"), "isolated");
    let b = Pod::new(&host, (1, "b"), "isolated");
    let (to, from) = (b.sandbox.mac("eth0"), a.sandbox.mac("eth0"));
    let arrived = |types: &[u16]| {
        let (to, from) = (to.as_str(), from.as_str());
        let header = Header { to, from, types };
        let packet = datagram([10, 1, 1, 2], [10, 1, 1, 3]);
        let frame = (&header, packet.as_slice());
        let rates = pour(
            (&a.sandbox, "eth0", Way::Queued),
            frame,
            (&b.sandbox, "eth0"),
            1,
        );
        rates.iter().any(|megabits| *megabits > 1.0)
    };
    for (which, change) in [("of ADD", ""), ("of RELOAD", "flush ruleset")] {
        if !change.is_empty() {
            host.run("nft", &[change]);
            assert!(arrived(&[0x8100, 0x0800]));
            for pod in [&a, &b] {
                let result = &pod.firewall.config()["prevResult"];
                let refusal = pod.firewall.check(&pod.sandbox, result).error();
                assert!(refusal.mentions("isolated-ports"), "{refusal:?}");
                pod.firewall.on("RELOAD", &pod.sandbox).ok();
                pod.check();
            }
        }
        for types in [&[0x8100, 0x0800][..], &[0x88a8, 0x8100, 0x0800], &[0x0800]] {
            assert!(!arrived(types), "{types:x?} in spite of the rules {which}");
        }
    }
    for pod in [&a, &b] {
        pod.del();
    }
    assert_eq!(elements(&host), "");
}

/// The bridge counts, not the address that a pod writes into its packets.
#[test]
fn foreign_source_address_passes_no_policy() {
    let host = Host::new();
    let a = Pod::new(&host, (1, "a"), "same-bridge");
    let b = Pod::new(&host, (2, "b"), "same-bridge");
    let arrives = || {
        let listening = b
            .sandbox
            .enter(|| UdpSocket::bind((b.address.as_str(), 9)).unwrap());
        listening
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let calling = a.sandbox.enter(|| UdpSocket::bind("10.9.9.9:0").unwrap());
        calling.send_to(b"x", (b.address.as_str(), 9)).unwrap();
        listening.recv_from(&mut [0; 4]).is_ok()
    };
    a.sandbox.ip("address add 10.9.9.9/32 dev eth0");
    assert!(!arrives());
    a.firewall.del(&a.sandbox);
    assert!(arrives());
}

#[test]
fn policy_is_restored_after_a_flush_and_collected_with_its_last_pod() {
    let host = Host::new();
    let a = Pod::new(&host, (1, "a"), "isolated");
    let b = Pod::new(&host, (2, "b"), "same-bridge");
    host.run("nft", &["flush ruleset"]);
    assert!(a.reaches(&b));
    for pod in [&a, &b] {
        pod.firewall.on("RELOAD", &pod.sandbox).ok();
        pod.check();
    }
    assert!(!a.reaches(&b));
    for pod in [&a, &b] {
        pod.firewall.gc(&[]).ok();
    }
    assert_eq!(elements(&host), "");
}

/// `bridge` makes a VLAN link and reports it. A veth pair is its stand-in on kernels without VLANs.
#[test]
fn policy_covers_the_hosts_end_of_a_vlan_too() {
    let host = Host::new();
    let a = Pod::new(&host, (1, "a"), "same-bridge");
    let b = Pod::new(&host, (2, "b"), "same-bridge");
    for change in [
        "link add cni1.100 type veth peer name port100",
        "link set port100 master cni1 up",
        "address delete 10.1.1.1/24 dev cni1",
        "link set cni1.100 up",
        "address add 10.1.1.1/24 dev cni1.100",
    ] {
        host.ip(change);
    }
    // Otherwise the bridge answers for the address, too.
    host.set_sysctl("net/ipv4/conf/cni1/arp_ignore", "1");
    assert!(eventually(|| a.reaches(&b)), "cni1.100 has no policy yet");
    let mut result = a.firewall.config()["prevResult"].clone();
    let links = result["interfaces"].as_array_mut().unwrap();
    links.push(json!({"name": "cni1.100"}));
    let firewall = a.firewall.clone().with("prevResult", result.clone());
    firewall.add(&a.sandbox);
    assert!(a.is_apart_from(&b));
    assert_eq!(firewall.check(&a.sandbox, &result).ok(), Value::Null);
    a.del();
    b.del();
    assert_eq!(elements(&host), "");
}

#[test]
fn pods_of_one_vlan_share_its_link() {
    let host = Host::new();
    let pods = ["a", "b"].map(|name| Pod::new(&host, (1, name), "isolated"));
    let networks = pods.each_ref().map(|pod| {
        let mut result = pod.firewall.config()["prevResult"].clone();
        let links = result["interfaces"].as_array_mut().unwrap();
        links.push(json!({"name": "cni1.100"}));
        pod.firewall.clone().with("prevResult", result)
    });
    for (pod, network) in pods.iter().zip(&networks) {
        network.add(&pod.sandbox);
    }
    for (pod, network) in pods.iter().zip(&networks) {
        let result = &network.config()["prevResult"];
        assert_eq!(network.check(&pod.sandbox, result).ok(), Value::Null);
    }
}

#[test]
fn policy_ends_with_pods_that_are_deleted_at_once() {
    let host = Host::new();
    let pods: Vec<_> = (0..12)
        .map(|number| Pod::new(&host, (1, &format!("p{number}")), "same-bridge"))
        .collect();
    for round in 1..=10 {
        at_once(&pods, |pod| pod.firewall.del(&pod.sandbox));
        assert_eq!(elements(&host), "", "round {round}");
        at_once(&pods, |pod| pod.firewall.add(&pod.sandbox));
    }
}

#[test]
fn policy_needs_a_bridge() {
    let host = Host::new();
    let a = host.sandbox("a");
    let results = [
        json!({"ips": [{"address": "10.1.0.2/24"}]}),
        json!({"interfaces": [{"name": "eth0", "sandbox": a.path()}], "ips": []}),
        json!({"interfaces": [{"name": ""}], "ips": []}),
    ];
    for result in results {
        let firewall = host
            .bandwidth()
            .with("type", "firewall")
            .with("prevResult", result);
        for policy in ["same-bridge", "isolated"] {
            let asking = firewall.clone().with("ingressPolicy", policy);
            let refused = asking.on("ADD", &a).error();
            refused.expect(7, &["ingressPolicy", policy, "prevResult"]);
        }
    }
}

#[test]
fn policy_is_refused_behind_a_plugin_without_a_bridge() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = host.ptp().add(&a);
    let end = result["interfaces"][0]["name"].as_str().unwrap().to_owned();
    let firewall = host
        .bandwidth()
        .with("type", "firewall")
        .with("prevResult", result);
    for policy in ["same-bridge", "isolated"] {
        let asking = firewall.clone().with("ingressPolicy", policy);
        let refused = asking.on("ADD", &a).error();
        refused.expect(7, &["ingressPolicy", &end, "no bridge"]);
    }
    assert_eq!(elements(&host), "");
    firewall.add(&a);
}

/// CHECK gets the result of the whole chain.
#[test]
fn an_isolated_pod_passes_check_with_a_limit_behind_its_policy() {
    let host = Host::new();
    let a = host.sandbox("a");
    let chain = Chain::new(&host, &["bridge", "firewall", "bandwidth"]);
    let result = chain.add(&a).unwrap();
    chain.check_first(chain.len(), (&a, &result)).unwrap();
}

/// No rule uses the sets of members, so any process can delete them.
#[test]
fn deleted_sets_of_members_are_created_again() {
    let host = Host::new();
    let policies = [
        (1, "same-bridge", "members"),
        (2, "isolated", "isolated-members"),
    ];
    for (number, policy, members) in policies {
        let pod = Pod::new(&host, (number, &format!("a{number}")), policy);
        let delete = || {
            host.run("nft", &[&format!("delete set inet cni-firewall {members}")]);
        };
        delete();
        let result = &pod.firewall.config()["prevResult"];
        let checked = pod.firewall.check(&pod.sandbox, result);
        checked.error().expect(100, &[members]);
        pod.firewall.on("RELOAD", &pod.sandbox).ok();
        pod.check();
        delete();
        Pod::new(&host, (number, &format!("b{number}")), policy).check();
    }
}
