//! portmap: 127.0.0.1 reaches pods through host ports, and pods never reach servers that listen
//! only there (CVE-2020-8558).

use std::fs;

use serde_json::json;
use tests::faults::strace;
use tests::intruder::{Intruder, turn};
use tests::ports::route_localnet;
use tests::traffic::{Connection, tcp, tcp_by_port, udp, udp_by_port};
use tests::{Host, Place as _, Ports, Sandbox};

const PORTS: [&str; 2] = ["8080:80", "8080:80/udp"];

/// Returns whether a client in `pod` reaches a server of the host on 127.0.0.1, by TCP and by UDP.
fn intrudes(pod: &Sandbox, host: &Host) -> [bool; 2] {
    [
        tcp(pod, host, "127.0.0.1").is_some(),
        udp(pod, host, "127.0.0.1"),
    ]
}

fn localhost_reaches(pod: &Sandbox, host: &Host) -> [bool; 2] {
    [
        tcp_by_port(host, "127.0.0.1:8080", (pod, 80)).is_some(),
        udp_by_port(host, "127.0.0.1:8080", (pod, 80)).is_some(),
    ]
}

#[test]
fn pods_do_not_reach_localhost_before_and_after_a_flush_of_all_rules() {
    for bridged_frames in [true, false] {
        let host = Host::new();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let ports = host.ports().with_bridge("bridgeNfCall", bridged_frames);
        if host.show_bridged_frames(bridged_frames) != bridged_frames {
            continue;
        }
        ports.add(&a, &PORTS);
        turn(&a, "10.1.0.1");
        assert_eq!(localhost_reaches(&a, &host), [true; 2]);
        host.run("nft", &["flush", "ruleset"]);
        assert_eq!(route_localnet(&host), "1");
        assert_eq!(intrudes(&a, &host), [false; 2]);
        host.ip("xfrm policy flush");
        assert_eq!(intrudes(&a, &host), [true; 2], "it is real");
        ports.add(&b, &["8081:80"]);
        assert_eq!(intrudes(&a, &host), [false; 2]);
        // Either of the two protections suffices.
        host.ip("xfrm policy flush");
        assert_eq!(intrudes(&a, &host), [false; 2]);
    }
}

#[test]
fn check_names_a_missing_policy_and_reload_puts_it_back() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    let blocked = || host.ip("xfrm policy").matches("action block").count();
    assert_eq!(blocked(), 2);
    host.ip("xfrm policy delete dir in dst 127.0.0.0/8");
    let said = tool
        .run(&["check", "pods", a.path().to_str().unwrap()])
        .run();
    assert!(
        said.stderr
            .contains("no IPsec policy blocks packets to 127.0.0.0/8"),
        "{said:?}"
    );
    tool.run(&["reload"]).ok();
    assert_eq!(blocked(), 2);
}

#[test]
fn rules_alone_guard_if_the_operator_wants_that() {
    let host = Host::new();
    let a = host.sandbox("a");
    let portmap = host.ports().with("localhostGuard", "rules").add(&a, &PORTS);
    let result = portmap.config()["prevResult"].clone();
    let intruder = Intruder::new(&a, &host, "10.1.0.1");
    assert_eq!(intruder.arrives(), [false; 2]);
    portmap.check(&a, &result).ok();
    host.run("nft", &["flush", "ruleset"]);
    assert_eq!(intruder.arrives(), [true; 2], "it is real");
    portmap.on("RELOAD", &a).ok();
    assert_eq!(intruder.arrives(), [false; 2]);
    assert_eq!(host.ip("xfrm policy"), "");
    let with_policies = portmap.with("localhostGuard", "policies");
    let refusal = with_policies.check(&a, &result).error();
    refusal.expect(100, &["no IPsec policy blocks packets from 127.0.0.0/8"]);
}

#[test]
fn route_localnet_goes_back_with_the_last_port_that_127_0_0_1_reaches() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let ports = host.ports();
    ports.add(&a, &PORTS);
    ports.add(&b, &["8081:80"]);
    ports.add(&c, &["10.1.0.1:8082:80"]);
    ports.forgotten(&a).ok();
    ports.forgotten(&a).ok();
    assert_eq!(route_localnet(&host), "1");
    assert!(tcp_by_port(&host, "127.0.0.1:8081", (&b, 80)).is_some());
    ports.forgotten(&b).ok();
    assert_eq!(route_localnet(&host), "0");
    turn(&c, "10.1.0.1");
    host.run("nft", &["flush", "ruleset"]);
    host.ip("xfrm policy flush");
    assert_eq!(intrudes(&c, &host), [false; 2]);
}

/// Cases: GC, a second ADD without such a port, and DEL of an attachment whose record is lost.
#[test]
fn route_localnet_goes_back_however_the_ports_end() {
    let end_by: [fn(&Ports<'_>, &Sandbox); 3] = [
        |ports, _| drop(ports.portmap().gc(&[]).ok()),
        |ports, pod| {
            let portmap = ports.portmap().clone().with("prevResult", result(ports));
            Ports::asking(&portmap, &["10.1.0.1:8080:80"]).add(pod);
        },
        |ports, pod| {
            fs::remove_file(format!("/run/cni/portmap/cni:pods:{}:eth0", pod.name())).unwrap();
            ports.forgotten(pod).ok();
        },
    ];
    for end in end_by {
        let host = Host::new();
        let a = host.sandbox("a");
        let ports = host.ports();
        let ports = ports.clone().with("prevResult", ports.bridge().add(&a));
        Ports::asking(ports.portmap(), &PORTS).add(&a);
        assert_eq!(route_localnet(&host), "1");
        end(&ports, &a);
        assert_eq!(route_localnet(&host), "0");
    }
}

fn result(ports: &Ports<'_>) -> serde_json::Value {
    ports.portmap().config()["prevResult"].clone()
}

#[test]
fn route_localnet_goes_back_although_the_records_are_lost() {
    for end in ["DEL", "GC"] {
        let host = Host::new();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let ports = host.ports();
        ports.add(&a, &["8080:80"]);
        ports.add(&b, &["8081:80"]);
        fs::remove_dir_all("/run/cni").unwrap();
        for (pod, left) in [(&a, "1"), (&b, "0")] {
            if end == "DEL" {
                ports.forgotten(pod).ok();
            } else {
                let listed: &[&Sandbox] = if left == "1" { &[&b] } else { &[] };
                ports.portmap().gc(listed).ok();
            }
            assert_eq!(route_localnet(&host), left, "{end}");
        }
    }
}

#[test]
fn route_localnet_that_another_program_set_stays() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    let portmap = ports.attach(&a, &PORTS);
    host.set_sysctl("net/ipv4/conf/cni0/route_localnet", "1");
    portmap.add(&a);
    ports.add(&b, &["8081:80"]);
    for pod in [&a, &b] {
        ports.forgotten(pod).ok();
    }
    assert_eq!(route_localnet(&host), "1");
}

/// Another attachment joins while the last one leaves, repeatedly.
#[test]
fn route_localnet_is_1_where_an_add_and_the_last_del_meet() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    let first = ports.attach(&a, &PORTS);
    let second = ports.attach(&b, &["8081:80"]);
    first.add(&a);
    for _ in 0..10 {
        tests::at_once(&[(&first, &a), (&second, &b)], |(portmap, pod)| {
            let verb = if is_attached(pod) { "DEL" } else { "ADD" };
            portmap.on(verb, pod).ok();
        });
        let attached = [&a, &b].map(is_attached);
        assert_eq!(attached.iter().filter(|it| **it).count(), 1);
        assert_eq!(route_localnet(&host), "1");
    }
}

/// Returns whether the pod has a record.
fn is_attached(pod: &Sandbox) -> bool {
    fs::exists(format!("/run/cni/portmap/cni:pods:{}:eth0", pod.name())).unwrap()
}

/// Some clients bind to an address of their own, to be distinguished.
#[test]
fn a_client_of_any_address_in_127_0_0_0_8_is_answered() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ports().add(&a, &PORTS);
    for source in ["127.0.0.1:0", "127.0.0.2:0", "127.255.0.9:0"] {
        let connection = Connection::open_from((&host, source), "127.0.0.1:8080", (&a, 80));
        assert!(connection.unwrap().carries(), "{source}");
    }
}

/// A node's name server for its pods uses such an address.
#[test]
fn a_port_of_all_addresses_leaves_link_local_ones_to_the_host() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    host.ip("address add 169.254.20.10/32 dev uplink");
    let link_local = host.link_local_addresses("uplink");
    let (link_local, _) = link_local[0].split_once('/').unwrap();
    let link = outside.link("outside")["ifindex"].clone();
    host.ports().add(&a, &PORTS);
    a.ip("route add 169.254.20.10 via 10.1.0.1");
    let own = "169.254.20.10:8080";
    assert!(tcp_by_port(&a, own, (&host, 8080)).is_some());
    assert!(udp_by_port(&host, own, (&host, 8080)).is_some());
    let own = format!("[{link_local}%{link}]:8080");
    assert!(tcp_by_port(&outside, &own, (&host, 8080)).is_some());
    assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some());
}

/// A runtime may recreate a pair before its second ADD.
#[test]
fn a_second_add_with_another_link_of_the_host_releases_the_first_one() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "pair"}, {"name": "eth0", "sandbox": a.path()}],
        "ips": [{"address": "10.9.0.2/24", "interface": 1}],
    });
    let portmap = host.ports().portmap().clone().with("prevResult", result);
    let portmap = Ports::asking(&portmap, &["8080:80"]);
    let users = || fs::read_dir("/run/cni/localnet").unwrap().count();
    for _ in 0..2 {
        host.ip("link add pair type veth peer name eth0 netns a");
        host.ip("link set pair up");
        host.ip("address add 10.9.0.1/24 dev pair");
        portmap.on("ADD", &a).ok();
        assert_eq!(users(), 1);
        a.ip("link delete eth0");
    }
    portmap.on("DEL", &a).ok();
    assert_eq!(users(), 0);
}

/// The second ADD is killed when it answers.
#[test]
fn del_after_a_killed_second_add_releases_the_links_of_both() {
    let host = Host::new();
    let a = host.sandbox("a");
    let add = |number: u8| {
        let (pair, network) = (format!("pair{number}"), format!("10.9.{number}"));
        host.ip(&format!(
            "link add {pair} type veth peer name e{number} netns a"
        ));
        host.ip(&format!("link set {pair} up"));
        host.ip(&format!("address add {network}.1/24 dev {pair}"));
        let result = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": pair}, {"name": "eth0", "sandbox": a.path()}],
            "ips": [{"address": format!("{network}.2/24"), "interface": 1}],
        });
        let portmap = host.ports().portmap().clone().with("prevResult", result);
        Ports::asking(&portmap, &["8080:80"]).on("ADD", &a)
    };
    let route_localnet =
        || ["pair1", "pair2"].map(|it| host.sysctl(&format!("net/ipv4/conf/{it}/route_localnet")));
    let both = |value: &str| [Some(value.to_owned()), Some(value.to_owned())];
    add(1).ok();
    let mut killed = strace(&host.dir().join("trace"));
    let fault = "-e trace=write -e inject=write:signal=KILL:when=2";
    killed.extend(fault.split(' ').map(str::to_owned));
    add(2).under(&killed).run();
    assert_eq!(route_localnet(), both("1"));
    host.ports().forgotten(&a).ok();
    assert_eq!(route_localnet(), both("0"));
    assert_eq!(fs::read_dir("/run/cni/localnet").unwrap().count(), 0);
}
