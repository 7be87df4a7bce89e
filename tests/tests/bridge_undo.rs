//! bridge: a failed ADD restores the host, and existing attachments keep working.

use std::fs;
use std::process::Stdio;

use serde_json::json;
use tests::{Host, Network, Place as _, warm_host};

fn with_route<'h>(host: &'h Host, dst: &str, gw: &str) -> Network<'h> {
    host.bridge()
        .with("ipam.routes", json!([{"dst": dst, "gw": gw}]))
}

#[test]
fn a_route_by_an_unreachable_gateway_undoes_the_add() {
    let (host, before, a) = warm_host(Host::bridge);
    for (dst, gw) in [
        ("10.9.0.0/16", "172.31.0.1"),
        ("fd00:9::/48", "2001:db8:77::1"),
    ] {
        let refusal = with_route(&host, dst, gw).on("ADD", &a).error();
        assert!(refusal.mentions(dst) && refusal.mentions(gw), "{refusal:?}");
        host.snapshot().assert_same_as(&before);
        assert_eq!(a.links(), ["lo"]);
    }
    host.bridge().add(&a);
    assert!(a.pings("10.1.0.1"), "the next ADD works");
}

#[test]
fn a_link_that_is_there_already_is_kept_and_named() {
    let (host, _, a) = warm_host(Host::bridge);
    host.ip("link add strange type veth peer name eth0 netns a");
    let before = host.snapshot();
    let mac = a.mac("eth0");
    let refusal = host.bridge().on("ADD", &a).error();
    assert!(refusal.mentions("eth0"), "{refusal:?}");
    host.snapshot().assert_same_as(&before);
    assert_eq!(a.mac("eth0"), mac);
}

#[test]
fn a_second_add_of_the_same_attachment_is_refused_and_the_first_one_works_on() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let result = host.bridge().add(&a);
    host.bridge().add(&b);
    let before = host.snapshot();
    let refusal = host.bridge().on("ADD", &a).error();
    assert!(refusal.mentions("eth0"), "{refusal:?}");
    host.snapshot().assert_same_as(&before);
    assert!(b.pings("10.1.0.2") && b.pings("fd00:1::2") && a.pings("10.1.0.1"));
    host.bridge().check(&a, &result).ok();
}

#[test]
fn an_attachment_whose_sandbox_was_replaced_is_refused_too() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.bridge().add(&a);
    let before = host.snapshot();
    host.bridge().on("ADD", &a).netns(b.path()).error();
    host.snapshot().assert_same_as(&before);
    assert_eq!(b.links(), ["lo"]);
    assert!(a.pings("10.1.0.1"));
}

#[test]
fn closed_standard_output_undoes_the_add() {
    let (host, before, a) = warm_host(Host::bridge);
    let closed = ["sh", "-c", "exec \"$0\" >&-"].map(String::from);
    let outcome = host.bridge().on("ADD", &a).under(&closed).run();
    assert!(!outcome.status.success(), "{outcome:?}");
    assert!(
        outcome.stderr.contains("stdout: it is closed"),
        "{outcome:?}"
    );
    host.snapshot().assert_same_as(&before);
    assert_eq!(a.links(), ["lo"]);
}

#[test]
fn a_foreign_host_link_of_the_same_name_is_kept() {
    let (host, _, a) = warm_host(Host::bridge);
    let result = host.bridge().add(&a);
    let name = result["interfaces"][1]["name"].as_str().unwrap();
    host.bridge().del(&a);
    host.ip(&format!("link add {name} type veth peer name strange"));
    host.ip(&format!("link set {name} alias strangers"));
    let before = host.snapshot();
    let refusal = host.bridge().on("ADD", &a).error();
    assert!(refusal.mentions(name), "{refusal:?}");
    host.snapshot().assert_same_as(&before);
    host.bridge().del(&a);
    host.snapshot().assert_same_as(&before);
    assert_eq!(a.links(), ["lo"]);
}

#[test]
fn a_full_range_leaves_no_link() {
    let (host, _, a) = warm_host(Host::bridge);
    let ranges =
        json!([[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.9"}]]);
    let network = host.bridge().with("ipam.ranges", ranges);
    network.add(&host.sandbox("b"));
    let before = host.snapshot();
    network.on("ADD", &a).error();
    host.snapshot().assert_same_as(&before);
    assert_eq!(a.links(), ["lo"]);
}

#[test]
fn a_path_that_is_no_sandbox_costs_nothing() {
    let (host, before, _) = warm_host(Host::bridge);
    let file = host.dir().join("plain");
    fs::write(&file, "").unwrap();
    for path in [
        file.to_str().unwrap(),
        "/run/netns/never-was",
        "/dev/null",
        "/proc/self/ns/mnt",
    ] {
        let add = host
            .bridge()
            .call("ADD")
            .container("c1")
            .ifname("eth0")
            .netns(path);
        add.error().expect(4, &["CNI_NETNS", path]);
        host.snapshot().assert_same_as(&before);
    }
}

#[test]
fn a_result_that_cannot_be_written_undoes_the_add() {
    let (host, before, a) = warm_host(Host::bridge);
    let config = host.dir().join("config.json");
    fs::write(&config, host.bridge().config().to_string()).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut add = host.bridge().on("ADD", &a).command();
    add.stdin(fs::File::open(config).unwrap());
    add.stdout(writer).stderr(Stdio::piped());
    let outcome = add.output().unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
    assert!(!outcome.stderr.is_empty(), "the error is on standard error");
    host.snapshot().assert_same_as(&before);
    assert_eq!(a.links(), ["lo"]);
}

#[test]
fn a_lease_that_does_not_fit_is_released() {
    let (host, before, a) = warm_host(Host::bridge);
    host.bridge()
        .with("mtu", 1200)
        .on("ADD", &a)
        .error()
        .expect(7, &["1200"]);
    host.snapshot().assert_same_as(&before);
    assert_eq!(a.links(), ["lo"]);
}
