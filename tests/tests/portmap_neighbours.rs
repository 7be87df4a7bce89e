//! portmap beside other programs that translate, forward and drop.

use std::net::IpAddr;

use serde_json::json;
use tests::traffic::{tcp_by_port, udp_by_port};
use tests::{Host, Network, Place as _, Ports, Sandbox};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Creates a Service like kube-proxy, with the host port's number, that leads to `pod`.
fn make_service(host: &Host, service: &str, pod: &str) {
    let commands = format!(
        "add table ip kube-proxy
         add chain ip kube-proxy services
         add rule ip kube-proxy services {service} tcp dport 8080 dnat to {pod}
         add chain ip kube-proxy prerouting {{ type nat hook prerouting priority -100; }}
         add rule ip kube-proxy prerouting jump services
         add chain ip kube-proxy output {{ type nat hook output priority -100; }}
         add rule ip kube-proxy output jump services"
    );
    host.run("nft", &[&commands.replace('\n', ";")]);
}

/// Returns the names of pods that answer at port 80 to a request to port 8080.
fn answering(client: &impl tests::Place, target: &str, pods: [&Sandbox; 2]) -> Vec<String> {
    let answers = |pod: &&&Sandbox| tcp_by_port(client, target, (**pod, 80)).is_some();
    let answering = pods.iter().filter(answers);
    answering.map(|pod| pod.name().to_owned()).collect()
}

#[test]
fn services_take_precedence_whichever_was_created_first() {
    for service_is_first in [true, false] {
        let host = Host::new();
        let outside = host.outside();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let ports = host.ports();
        let service = || make_service(&host, "ip daddr 192.0.2.1", "10.1.0.3:80");
        let portmap = ports.attach(&a, &["8080:80"]);
        ports.bridge().add(&b);
        if service_is_first {
            service();
            portmap.add(&a);
        } else {
            portmap.add(&a);
            service();
        }
        assert_eq!(answering(&outside, "192.0.2.1:8080", [&a, &b]), ["b"]);
        // Answers within a bridge need netfilter, or the client does not recognize them.
        if host.show_bridged_frames(true) {
            assert_eq!(answering(&a, "192.0.2.1:8080", [&a, &b]), ["b"]);
        }
        assert_eq!(answering(&host, "192.0.2.1:8080", [&a, &b]), ["b"]);
        assert_eq!(answering(&host, "10.1.0.1:8080", [&a, &b]), ["a"]);
    }
}

/// In IPVS mode a Service's addresses are local to the host, so host ports catch them.
#[test]
fn services_of_ipvs_are_left_alone_where_the_conditions_say_so() {
    for (conditions, is_caught) in [
        (json!([]), true),
        (json!(["ip daddr != 10.96.0.0/12"]), false),
    ] {
        let host = Host::new();
        let outside = host.outside();
        outside.ip("route add 10.96.0.0/12 via 192.0.2.1");
        host.ip("link add kube-ipvs0 type bridge");
        host.ip("address add 10.96.0.1/32 dev kube-ipvs0");
        let a = host.sandbox("a");
        let ports = host.ports().with("conditionsV4", conditions);
        ports.add(&a, &["8080:80"]);
        let seen = tcp_by_port(&outside, "10.96.0.1:8080", (&a, 80));
        assert_eq!(seen.is_some(), is_caught);
        let served = tcp_by_port(&outside, "10.96.0.1:8080", (&host, 8080));
        assert_eq!(served.is_some(), !is_caught);
        assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some());
    }
}

/// Shows which connections a dropping firewall must be configured to forward.
#[test]
fn a_firewall_that_drops_forwards_translated_connections_with_the_documented_rules() {
    let host = Host::new();
    let outside = host.outside();
    host.ip("address add 2001:db8::1/64 dev uplink nodad");
    outside.ip("address add 2001:db8::2/64 dev outside nodad");
    let a = host.sandbox("a");
    host.ports().add(&a, &["8080:80", "8053:53/udp"]);
    let works = || {
        [
            tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some(),
            tcp_by_port(&outside, "[2001:db8::1]:8080", (&a, 80)).is_some(),
            udp_by_port(&outside, "192.0.2.1:8053", (&a, 53)).is_some(),
        ]
    };
    assert_eq!(works(), [true; 3]);
    let firewall = "add table inet filter; add chain inet filter forward { type filter hook forward priority 0; policy drop; }";
    host.run("nft", &[firewall]);
    assert_eq!(works(), [false; 3]);
    let allowed = "add rule inet filter forward ct state established,related accept; add rule inet filter forward ct status dnat accept";
    host.run("nft", &[allowed]);
    assert_eq!(works(), [true; 3]);
}

/// A connection that only a Service translates keeps its client address, with or without host
/// ports.
#[test]
fn clients_of_a_service_are_seen_as_what_they_are() {
    let host = Host::new();
    if !host.show_bridged_frames(true) {
        return;
    }
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.ports().add(&a, &["8080:80"]);
    host.ports().add(&b, &[]);
    make_service(&host, "ip daddr 10.96.0.1", "10.1.0.2:80");
    let seen = tcp_by_port(&b, "10.96.0.1:8080", (&a, 80));
    assert_eq!(seen, Some(address("10.1.0.3")));
}

/// A node that switches without a restart keeps the reference's rules and pods.
#[test]
fn pods_of_the_reference_keep_their_ports_beside_ours() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    let theirs = ports.attach(&a, &["8080:80"]).by_reference();
    theirs.add(&a);
    ports.add(&b, &["8081:80"]);
    for (port, pod) in [(8080, &a), (8081, &b)] {
        let seen = tcp_by_port(&outside, &format!("192.0.2.1:{port}"), (pod, 80));
        assert_eq!(seen, Some(address("192.0.2.2")));
        assert!(tcp_by_port(&host, &format!("127.0.0.1:{port}"), (pod, 80)).is_some());
    }
    theirs.del(&a);
    assert!(tcp_by_port(&outside, "192.0.2.1:8081", (&b, 80)).is_some());
}

/// nftables.service and many administrators do this. A single comment that is too long for nft(8),
/// or has an early end, would prevent it from loading the whole firewall.
#[test]
fn rules_that_were_saved_can_be_loaded_again_whatever_the_names() {
    let host = Host::new();
    let ports = host
        .ports()
        .with_bridge("ipMasq", true)
        .with_bridge("macspoofchk", true);
    for (network, container, interface) in [
        ("pods", "a", "eth0"),
        (&"n".repeat(54), &"c".repeat(64), "eth0"),
        (&"n".repeat(200), &"d".repeat(200), "eth0"),
        ("pods", "e", "\"eth0\""),
        ("pods", "f", "';}\\$#{@\\"),
        (&"n".repeat(200), &"g".repeat(200), &"\"".repeat(15)),
    ] {
        let pod = host.sandbox(container);
        let ports = ports.clone().named(network);
        let on = |network: &Network<'_>, verb: &str| network.on(verb, &pod).ifname(interface);
        let result = on(ports.bridge(), "ADD").ok();
        let portmap = ports.portmap().clone().with("prevResult", result);
        let portmap = Ports::asking(&portmap, &["8080:80"]);
        on(&portmap, "ADD").ok();
        let saved = format!("flush ruleset\n{}", host.run("nft", &["list", "ruleset"]));
        let file = host.dir().join("saved.nft");
        std::fs::write(&file, saved).unwrap();
        host.run("nft", &["--file", file.to_str().unwrap()]);
        assert!(tcp_by_port(&host, "127.0.0.1:8080", (&pod, 80)).is_some());
        on(&portmap, "CHECK").ok();
        on(&portmap, "DEL").ok();
        on(ports.bridge(), "DEL").ok();
        assert!(!host.run("nft", &["list", "ruleset"]).contains("cni:"));
    }
}
