//! portmap: its chains that keep neighbours off 127.0.0.0/8, without the policies of `IPsec`.

use serde_json::json;
use tests::traffic::{tcp, tcp_by_port, udp, udp_by_port};
use tests::{Host, Place as _, Sandbox};

const PORTS: [&str; 2] = ["127.0.0.1:8080:80", "127.0.0.1:8080:80/udp"];

/// Makes the pod send packets for 127.0.0.0/8 to the host, as its root can.
fn turn(pod: &Sandbox) {
    pod.set_sysctl("net/ipv4/conf/all/route_localnet", "1");
    pod.ip("route add 127.0.0.0/8 via 10.1.0.1");
}

fn reaches(client: &impl tests::Place, pod: &Sandbox) -> [bool; 2] {
    [
        tcp_by_port(client, "127.0.0.1:8080", (pod, 80)).is_some(),
        udp_by_port(client, "127.0.0.1:8080", (pod, 80)).is_some(),
    ]
}

fn intrudes(pod: &Sandbox, host: &Host) -> [bool; 2] {
    [
        tcp(pod, host, "127.0.0.1").is_some(),
        udp(pod, host, "127.0.0.1"),
    ]
}

#[test]
fn only_the_host_reaches_a_port_of_127_0_0_1() {
    let host = Host::new();
    if !host.show_bridged_frames(true) {
        return;
    }
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.ports().add(&a, &PORTS);
    host.ports().bridge().add(&b);
    turn(&b);
    host.ip("xfrm policy flush");
    assert_eq!(reaches(&host, &a), [true; 2]);
    assert_eq!(reaches(&b, &a), [false; 2]);
    let guard = "flush chain inet cni-portmap martian-connections";
    host.run("nft", &[guard]);
    assert_eq!(reaches(&b, &a), [true; 2], "it is real");
}

/// Packets that are not tracked pass no chain that translates.
#[test]
fn packets_that_are_not_tracked_do_not_reach_localhost() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ports().add(&a, &PORTS);
    turn(&a);
    host.ip("xfrm policy flush");
    let untracked = "add table ip own; \
        add chain ip own in { type filter hook prerouting priority -300; }; \
        add rule ip own in iifname cni0 notrack; \
        add chain ip own out { type filter hook output priority -300; }; \
        add rule ip own out oifname cni0 notrack";
    host.run("nft", &[untracked]);
    assert_eq!(intrudes(&a, &host), [false; 2]);
    host.run("nft", &["flush chain inet cni-portmap martians"]);
    assert_eq!(intrudes(&a, &host), [true; 2], "it is real");
}

/// An administrator publishes a service that listens only on 127.0.0.1.
#[test]
fn what_the_host_itself_translates_to_127_0_0_1_arrives() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ports().add(&a, &PORTS);
    let own = "add table ip own; \
        add chain ip own pre { type nat hook prerouting priority -100; }; \
        add rule ip own pre ip daddr 10.1.0.1 tcp dport 8000 dnat to 127.0.0.1:9000";
    host.run("nft", &[own]);
    assert!(tcp_by_port(&a, "10.1.0.1:8000", (&host, 9000)).is_some());
    turn(&a);
    assert_eq!(intrudes(&a, &host), [false; 2]);
}

/// Earlier builds examined all packets in the hook `prerouting`.
#[test]
fn the_chain_of_an_earlier_build_is_replaced_and_no_port_is_lost() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let ports = host.ports();
    let narrow = ports
        .clone()
        .with("conditionsV4", json!(["ip saddr != 192.0.2.7"]));
    narrow.add(&a, &["8080:80"]);
    let portmap = ports.add(&b, &["8081:80"]);
    let table = || host.run("nft", &["list", "table", "inet", "cni-portmap"]);
    let before = table();
    let earlier = "delete chain inet cni-portmap martian-connections; \
        delete chain inet cni-portmap martians; \
        add chain inet cni-portmap martians { type filter hook prerouting priority -300; }; \
        add rule inet cni-portmap martians ip daddr 127.0.0.0/8 iifname != lo drop; \
        add rule inet cni-portmap martians ip saddr 127.0.0.0/8 iifname != lo drop";
    host.run("nft", &[earlier]);
    let refusal = portmap.on("CHECK", &b).error();
    refusal.expect(
        100,
        &["chain martians of nf_tables table cni-portmap was changed"],
    );
    let third = ports.attach(&c, &["8082:80"]);
    let said = third.on("ADD", &c).run();
    assert!(!said.stderr.contains("recreated"), "{said:?}");
    for (port, pod) in [(8080, &a), (8081, &b), (8082, &c)] {
        let target = format!("192.0.2.1:{port}");
        assert!(
            tcp_by_port(&outside, &target, (pod, 80)).is_some(),
            "{target}"
        );
    }
    third.on("DEL", &c).ok();
    assert_eq!(sorted(&table()), sorted(&before));
}

/// Chains have an order that nothing depends on.
fn sorted(listed: &str) -> Vec<&str> {
    let mut lines: Vec<_> = listed.lines().map(str::trim).collect();
    lines.sort_unstable();
    lines
}
