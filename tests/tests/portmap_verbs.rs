//! portmap: leftovers, checks and messages of the verbs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};
use tests::traffic::tcp_by_port;
use tests::{Host, Place as _};

/// Returns the elements of the table.
fn elements(host: &Host) -> String {
    let rules = host.run("nft", &["list", "ruleset"]);
    let lines = rules.lines().filter(|line| line.contains("cni:"));
    lines.collect::<Vec<_>>().join("\n")
}

fn nft(host: &Host, command: &str) {
    let words: Vec<_> = command.split_whitespace().collect();
    host.run("nft", &words);
}

const RECORD: &str = "/run/cni/portmap/cni:pods:a:eth0";

#[test]
fn elements_are_tagged_with_their_owner_and_a_record_exists() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ports().add(&a, &["8080:80", "192.0.2.1:8053:53/udp"]);
    let listed = elements(&host);
    for element in [
        "tcp . 8080 comment \"cni:pods/a/eth0\" : 10.1.0.2 . 80",
        "tcp . 8080 comment \"cni:pods/a/eth0\" : fd00:1::2 . 80",
        "192.0.2.1 . udp . 8053 comment \"cni:pods/a/eth0\" : 10.1.0.2 . 53",
        "\"cni0\" . 10.1.0.2 comment \"cni:pods/a/eth0\"",
    ] {
        assert!(listed.contains(element), "{element} in {listed}");
    }
    let set = [
        "list",
        "set",
        "inet",
        "cni-portmap",
        "masquerade-localhost4",
    ];
    let localhost = host.run("nft", &set);
    assert!(
        localhost.contains("10.1.0.2 comment \"cni:pods/a/eth0\""),
        "{localhost}"
    );
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(RECORD), mode("/run/cni/portmap")), (0o600, 0o755));
    host.run("nft", &["-j", "list", "ruleset"]);
}

#[test]
fn del_needs_nothing_but_the_names() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    ports.add(&a, &["8080:80"]);
    ports.add(&b, &["8081:80"]);
    a.remove();
    for _ in 0..2 {
        ports.forgotten(&a).ok();
    }
    assert!(!elements(&host).contains("cni:pods/a/"));
    assert!(!fs::exists(RECORD).unwrap());
    assert!(tcp_by_port(&host, "127.0.0.1:8081", (&b, 80)).is_some());
    ports.forgotten(&b).ok();
    assert_eq!(elements(&host), "");
    assert!(
        host.run("nft", &["list", "ruleset"])
            .contains("chain prerouting")
    );
}

#[test]
fn the_record_of_a_killed_add_is_found_by_del_and_gc() {
    let host = Host::new();
    let a = host.sandbox("a");
    fs::create_dir_all("/run/cni/portmap").unwrap();
    let left = || {
        for name in ["cni:pods:a:eth0", "new-cni:pods:a:eth0", "cni:podsx:a:eth0"] {
            fs::write(format!("/run/cni/portmap/{name}"), "{").unwrap();
        }
    };
    let there = || fs::read_dir("/run/cni/portmap").unwrap().count();
    left();
    host.ports().forgotten(&a).ok();
    assert_eq!(there(), 1);
    left();
    host.ports().portmap().gc(&[]).ok();
    assert_eq!(there(), 1);
}

#[test]
fn del_succeeds_where_there_was_never_a_record_and_nothing_may_be_written() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    let portmap = ports.add(&a, &["8080:80"]);
    host.read_only("/run");
    ports.forgotten(&b).ok();
    let refusal = portmap.on("ADD", &b).error();
    refusal.expect(100, &["write record /run/cni/portmap/", "write below /run"]);
    assert!(fs::exists(RECORD).unwrap());
}

#[test]
fn gc_removes_what_it_can_and_reports_what_it_cannot() {
    let host = Host::new();
    let record = |name: &str| format!("/run/cni/portmap/cni:pods:{name}:eth0");
    fs::create_dir_all(record("first")).unwrap();
    for name in ["b", "c", "d"] {
        fs::write(record(name), "{").unwrap();
    }
    fs::create_dir(record("last")).unwrap();
    let refusal = host.ports().portmap().gc(&[]).error();
    let named = ["first", "last"].map(|it| format!("retired-cni:pods:{it}:eth0"));
    refusal.expect(100, &[&named[0], &named[1]]);
    let left = fs::read_dir("/run/cni/portmap").unwrap().count();
    assert_eq!(left, 2);
}

#[test]
fn gc_removes_ports_of_unlisted_attachments_of_this_network() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let ports = host.ports();
    ports.add(&a, &["8080:80"]);
    ports.add(&b, &["8081:80"]);
    ports.clone().named("podsx").add(&c, &["8082:80"]);
    let outcome = ports.portmap().gc(&[&a]).run();
    outcome.ok();
    assert!(outcome.stderr.contains("cni:pods/b/eth0"), "{outcome:?}");
    let listed = elements(&host);
    assert!(listed.contains("cni:pods/a/") && listed.contains("cni:podsx/c/"));
    assert!(!listed.contains("cni:pods/b/"), "{listed}");
    ports.portmap().gc(&[]).ok();
    assert!(!elements(&host).contains("cni:pods/") && !fs::exists(RECORD).unwrap());
}

#[test]
fn check_reports_differences() {
    let host = Host::new();
    let a = host.sandbox("a");
    let portmap = host.ports().add(&a, &["8080:80"]);
    let check = || portmap.on("CHECK", &a);
    assert_eq!(check().ok(), Value::Null);
    let other = json!([{"hostPort": 8080, "containerPort": 81}]);
    let other = portmap.clone().with("runtimeConfig.portMappings", other);
    let refusal = other.on("CHECK", &a).error();
    refusal.expect(100, &["has another value", "not asked for"]);
    let sysctl = "net/ipv4/conf/cni0/route_localnet";
    host.set_sysctl(sysctl, "0");
    let refusal = check().error();
    refusal.expect(100, &["net.ipv4.conf.cni0.route_localnet is 0"]);
    host.set_sysctl(sysctl, "1");
    let element = "delete element inet cni-portmap ports4 { tcp . 8080 }";
    nft(&host, element);
    check().error().expect(100, &["cni:pods/a/eth0", "ports4"]);
    nft(&host, "flush ruleset");
    check().error().expect(100, &["cni-portmap"]);
}

#[test]
fn flushed_chains_are_reported_by_check_and_repaired_by_the_next_add() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    let portmap = ports.add(&a, &["8080:80"]);
    let other = ports.attach(&b, &["8081:80"]);
    let chains = [
        "martians",
        "prerouting",
        "output",
        "host-ports",
        "translate",
        "postrouting",
    ];
    for chain in chains {
        nft(&host, &format!("flush chain inet cni-portmap {chain}"));
        let refusal = portmap.on("CHECK", &a).error();
        refusal.expect(100, &[&format!("chain {chain}")]);
        other.add(&b);
        portmap.on("CHECK", &a).ok();
        assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
        other.del(&b);
    }
}

#[test]
fn status_tries_the_rules_and_changes_nothing() {
    let host = Host::new();
    let portmap = host.ports().portmap().clone().with("cniVersion", "1.1.0");
    portmap.call("STATUS").ok();
    assert_eq!(host.run("nft", &["list", "ruleset"]), "");
    let broken = portmap
        .clone()
        .with("conditionsV4", json!(["ip frag-off 1"]));
    broken
        .call("STATUS")
        .error()
        .expect(7, &["conditionsV4", "frag-off"]);
}

#[test]
fn without_access_to_nf_tables_the_error_names_the_capability() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let version = "1.1.0";
    let ports = host.ports().with("cniVersion", version);
    let ports = ports.with_bridge("cniVersion", version);
    let portmap = ports.add(&a, &["8080:80"]);
    let other = ports.attach(&b, &["8081:80"]);
    for (call, code) in [
        (other.on("ADD", &b), 100),
        (portmap.on("CHECK", &a), 100),
        (portmap.on("RELOAD", &a), 100),
        (portmap.on("DEL", &a), 100),
        (ports.portmap().gc(&[]), 100),
        (portmap.call("STATUS"), 50),
    ] {
        let refusal = call.powerless().error();
        refusal.expect(code, &["nf_tables", "not permitted", "CAP_NET_ADMIN"]);
    }
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
}

#[test]
fn errors_say_what_to_do() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    let portmap = ports.add(&a, &["8080:80"]);
    let other = ports.attach(&b, &["8080:80"]);
    let nowhere = "/run/netns/nowhere";
    for (call, code, words) in [
        (other.on("ADD", &b), 11, "until its DEL or a GC"),
        (other.on("CHECK", &b), 100, "only ADD creates one"),
        (other.on("RELOAD", &b), 100, "only ADD creates one"),
        (portmap.on("ADD", &a).netns(nowhere), 4, nowhere),
        (
            portmap.on("ADD", &a).netns("/etc/hosts"),
            4,
            "no network namespace",
        ),
    ] {
        call.error().expect(code, &[words]);
    }
    nft(&host, "flush ruleset");
    let refusal = portmap.on("CHECK", &a).error();
    refusal.expect(100, &["cnitool reload"]);
    portmap.on("RELOAD", &a).ok();
    portmap.on("CHECK", &a).ok();
    a.ip("link delete eth0");
    let refusal = portmap.on("RELOAD", &a).error();
    refusal.expect(100, &["container a", "DEL removes"]);
}

#[test]
fn a_failed_add_leaves_nothing() {
    let host = Host::new();
    let a = host.sandbox("a");
    let portmap = host.ports().attach(&a, &["8080:80"]);
    fs::create_dir_all("/run/cni/localnet").unwrap();
    host.read_only("/run/cni/localnet");
    let refusal = portmap.on("ADD", &a).error();
    refusal.expect(100, &["127.0.0.1", "snat: false", "/run/cni/localnet"]);
    assert_eq!(elements(&host), "");
    assert!(!fs::exists(RECORD).unwrap());
    portmap.with("snat", false).add(&a);
}

#[test]
fn ports_need_no_file_below_proc_sys() {
    let host = Host::new();
    let a = host.sandbox("a");
    let portmap = host.ports().attach(&a, &["8080:80"]);
    host.read_only("/proc/sys");
    portmap.on("ADD", &a).ok();
    let sysctl = host.sysctl("net/ipv4/conf/cni0/route_localnet");
    assert_eq!(sysctl.as_deref(), Some("1"));
}

#[test]
fn mappings_without_destination_are_reported() {
    let host = Host::new();
    let a = host.sandbox("a");
    let ports = host
        .ports()
        .with_bridge("ipam.ranges", json!([[{"subnet": "10.1.0.0/24"}]]));
    let portmap = ports.attach(&a, &["[::]:8080:80", "8081:80"]);
    let outcome = portmap.on("ADD", &a).run();
    outcome.ok();
    let said = "tcp port 8080 of every IPv6 address is not forwarded";
    assert!(outcome.stderr.contains(said), "{outcome:?}");
    assert!(!elements(&host).contains("8080"));
    portmap.on("CHECK", &a).ok();
}

/// The reference also succeeds for a container without addresses.
#[test]
fn ports_of_a_container_without_an_address_are_passed_over() {
    let host = Host::new();
    let a = host.sandbox("a");
    let portmap = host
        .ports()
        .attach(&a, &["8080:80", "127.0.0.1:8053:53/udp"]);
    let mut result = portmap.config()["prevResult"].clone();
    result.as_object_mut().unwrap().remove("ips");
    let portmap = portmap.with("prevResult", result.clone());
    let theirs = portmap.by_reference();
    for (verb, printed) in [
        ("ADD", &result),
        ("CHECK", &Value::Null),
        ("RELOAD", &Value::Null),
        ("DEL", &Value::Null),
    ] {
        let outcome = portmap.on(verb, &a).run();
        assert_eq!(&outcome.ok(), printed, "{verb}");
        for mapping in ["tcp port 8080", "udp port 8053 of 127.0.0.1"] {
            let is_said = outcome
                .stderr
                .contains(&format!("{mapping} is not forwarded"));
            assert_eq!(is_said, verb != "DEL", "{verb}: {outcome:?}");
        }
        if verb != "RELOAD" {
            theirs.on(verb, &a).ok();
        }
    }
    assert_eq!(elements(&host), "");
    assert!(!fs::exists(RECORD).unwrap());
}
