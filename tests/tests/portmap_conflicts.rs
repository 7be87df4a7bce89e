//! portmap: ports with another holder.

use std::fs;
use std::os::unix::fs::symlink;

use tests::ports::rules;
use tests::traffic::{tcp_by_port, udp_by_port};
use tests::{Host, Place as _, Ports, Sandbox};

/// Returns two pods; the first one has these ports.
fn pods<'h>(host: &'h Host, taken: &[&str]) -> (Ports<'h>, Sandbox, Sandbox) {
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    ports.add(&a, taken);
    (ports, a, b)
}

fn records() -> Vec<String> {
    let files = fs::read_dir("/run/cni/portmap").unwrap();
    let mut names: Vec<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_port_that_a_pod_has_is_refused_with_its_name() {
    let host = Host::new();
    for (taken, asked, port) in [
        ("8080:80", "8080:81", "tcp port 8080 of every IPv4 address"),
        ("8080:80", "192.0.2.1:8080:80", "tcp port 8080 of 192.0.2.1"),
        ("192.0.2.1:8080:80", "8080:80", "tcp port 8080 of every"),
        (
            "192.0.2.1:8080:80",
            "192.0.2.1:8080:80",
            "tcp port 8080 of 192.0.2.1",
        ),
        (
            "[::]:8080:80/udp",
            "8080:80/udp",
            "udp port 8080 of every IPv6 address",
        ),
    ] {
        let (ports, a, b) = pods(&host, &[taken]);
        let before = rules(&host);
        let asks = ports.attach(&b, &["9090:90", asked]);
        let refusal = asks.on("ADD", &b).error();
        refusal.expect(11, &[port, "cni:pods/a/eth0", "try again later"]);
        assert_eq!(rules(&host), before, "nothing of it is left");
        assert_eq!(records(), ["cni:pods:a:eth0"]);
        ports.forgotten(&a).ok();
        asks.add(&b);
        asks.del(&b);
        for pod in [&a, &b] {
            ports.bridge().del(pod);
            pod.remove();
        }
    }
}

#[test]
fn ports_that_no_packet_could_confuse_coexist() {
    let host = Host::new();
    host.outside();
    host.ip("address add 192.0.2.9/24 dev uplink");
    let (ports, a, b) = pods(
        &host,
        &["192.0.2.1:8080:80", "8081:80/udp", "0.0.0.0:8082:80"],
    );
    ports.add(&b, &["192.0.2.9:8080:80", "8081:80", "[::]:8082:80"]);
    for (target, pod) in [
        ("192.0.2.1:8080", &a),
        ("192.0.2.9:8080", &b),
        ("192.0.2.1:8081", &b),
        ("127.0.0.1:8082", &a),
        ("[fd00:1::1]:8082", &b),
    ] {
        assert!(tcp_by_port(&host, target, (pod, 80)).is_some(), "{target}");
    }
    assert!(udp_by_port(&host, "192.0.2.1:8081", (&a, 80)).is_some());
}

#[test]
fn one_pod_may_have_a_port_of_all_addresses_and_another_end_for_one() {
    let host = Host::new();
    host.outside();
    let a = host.sandbox("a");
    host.ports().add(&a, &["8080:80", "192.0.2.1:8080:81"]);
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
    assert!(tcp_by_port(&host, "192.0.2.1:8080", (&a, 81)).is_some());
}

#[test]
fn ports_of_a_deleted_sandbox_are_taken_over() {
    let host = Host::new();
    let outside = host.outside();
    let gone: [fn(&Sandbox); 3] = [Sandbox::remove, Sandbox::unmount, |pod| {
        pod.ip("link delete eth0");
    }];
    for (number, end) in gone.into_iter().enumerate() {
        let [a, b] = ["a", "b"].map(|name| host.sandbox(&format!("{name}{number}")));
        let ports = host.ports();
        ports.add(&a, &["8080:80", "8081:80/udp"]);
        end(&a);
        let taking = ports.attach(&b, &["192.0.2.1:8080:80"]);
        let outcome = taking.on("ADD", &b).run();
        outcome.ok();
        let owner = format!("cni:pods/a{number}/eth0");
        let said = outcome.stderr.contains(&owner) && outcome.stderr.contains("taken over");
        assert!(said, "{outcome:?}");
        assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&b, 80)).is_some());
        assert!(!rules(&host).contains(&owner), "nothing of it is left");
        assert_eq!(records(), [format!("cni:pods:b{number}:eth0")]);
        // A late DEL of the deleted pod takes nothing from the other one.
        ports.forgotten(&a).ok();
        assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&b, 80)).is_some());
        taking.del(&b);
        ports.bridge().del(&b);
    }
}

#[test]
fn a_holder_without_proof_counts_as_live() {
    let host = Host::new();
    let (ports, a, b) = pods(&host, &["8080:80"]);
    let asks = ports.attach(&b, &["8080:80"]);
    let record = "/run/cni/portmap/cni:pods:a:eth0";
    let known = fs::read_to_string(record).unwrap();
    a.remove();
    // A path that cannot be resolved may lead to a namespace, even for root.
    symlink("loop", "/run/netns/loop").unwrap();
    for unknown in [
        known.replace("/run/netns/a", "/run/netns/loop"),
        String::new(),
    ] {
        fs::write(record, unknown).unwrap();
        asks.on("ADD", &b).error().expect(11, &["cni:pods/a/eth0"]);
    }
    ports.forgotten(&a).ok();
    asks.add(&b);
}

#[test]
fn an_element_without_owner_counts_as_live_and_is_reported_as_such() {
    let host = Host::new();
    let (ports, _a, b) = pods(&host, &["8080:80"]);
    let theirs = "add element inet cni-portmap ports4 { tcp . 7000 : 10.1.0.9 . 80 }";
    host.run("nft", &[theirs]);
    let refusal = ports.attach(&b, &["7000:80"]).on("ADD", &b).error();
    refusal.expect(
        11,
        &["tcp port 7000", "another program", "table cni-portmap"],
    );
    assert!(rules(&host).contains("tcp . 7000 : 10.1.0.9 . 80"));
}

#[test]
fn a_namespace_of_the_same_name_is_another_sandbox() {
    let host = Host::new();
    let (ports, a, b) = pods(&host, &["8080:80"]);
    host.end(&a);
    let _again = host.sandbox("a");
    ports.add(&b, &["8080:80"]);
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (&b, 80)).is_some());
}

#[test]
fn adding_again_replaces_what_the_same_attachment_had() {
    let host = Host::new();
    let (ports, a, _) = pods(&host, &["8080:80", "8081:81"]);
    let again = ports.portmap().clone().with(
        "prevResult",
        serde_json::json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}),
    );
    let mapping = serde_json::json!([{"hostPort": 8080, "containerPort": 82}]);
    let again = again.with("runtimeConfig.portMappings", mapping);
    again.add(&a);
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 82)).is_some());
    assert!(tcp_by_port(&host, "127.0.0.1:8081", (&a, 81)).is_none());
    again.on("CHECK", &a).ok();
}

#[test]
fn a_port_on_which_the_host_listens_is_served_by_the_pod() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let _listening = std::net::TcpListener::bind("0.0.0.0:8080").unwrap();
    let portmap = host.ports().add(&a, &["8080:80"]);
    assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some());
    portmap.on("CHECK", &a).ok();
    portmap.with("cniVersion", "1.1.0").call("STATUS").ok();
}

/// The machine lost its leases but not its rules.
#[test]
fn ports_of_a_deleted_pod_do_not_reach_the_next_pod_with_its_address() {
    let host = Host::new();
    let (ports, a, b) = pods(&host, &["8080:80"]);
    fs::remove_dir_all(host.lease_dir()).unwrap();
    host.ip("link set cni0 down");
    host.end(&a);
    host.ip("link set cni0 up");
    let portmap = ports.add(&b, &["9090:80"]);
    assert_eq!(
        portmap.config()["prevResult"]["ips"][0]["address"],
        "10.1.0.2/24"
    );
    assert!(!rules(&host).contains("cni:pods/a/"));
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (&b, 80)).is_none());
    assert!(tcp_by_port(&host, "127.0.0.1:9090", (&b, 80)).is_some());
}
