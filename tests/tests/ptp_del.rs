//! ptp DEL and GC: they remove everything of an attachment and nothing else; a failed ADD does,
//! too.

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, eventually, warm_host};

fn network(host: &Host) -> Network<'_> {
    host.ptp().with("ipMasq", true)
}

#[test]
fn nothing_is_left_however_often_del_is_asked() {
    let (host, before, a) = warm_host(network);
    let result = network(&host).add(&a);
    let with_result = network(&host).with("prevResult", result);
    with_result.del(&a);
    host.snapshot().assert_same_as(&before);
    assert_eq!(
        (a.links(), host.links()),
        (vec!["lo".to_owned()], vec!["lo".to_owned()])
    );
    with_result.del(&a);
    network(&host).on("DEL", &a).netns("").ok();
    host.snapshot().assert_same_as(&before);
}

#[test]
fn del_finds_the_pair_by_its_owner_without_sandbox_and_result() {
    let (host, before, a) = warm_host(network);
    let delete = network(&host).on("DEL", &a);
    for delete in [
        delete.clone().without("CNI_NETNS"),
        delete.clone().netns("/run/netns/never-was"),
        delete.clone().netns("/proc/self/ns/net"),
    ] {
        network(&host).add(&a);
        assert_eq!(delete.ok(), Value::Null);
        host.snapshot().assert_same_as(&before);
        assert_eq!(a.links(), ["lo"], "{delete:?}");
    }
}

#[test]
fn del_removes_elements_and_lease_of_a_sandbox_that_is_gone() {
    let (host, before, a) = warm_host(network);
    network(&host).add(&a);
    a.remove();
    // The routes end with the pair, the elements with DEL.
    assert!(eventually(|| host.links() == ["lo"]));
    assert_eq!(host.ip("route show 10.1.0.2/32"), "");
    assert!(
        host.run("nft", &["list", "ruleset"])
            .contains("cni:pods/a/eth0")
    );
    network(&host).del(&a);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn del_needs_no_valid_configuration() {
    let (host, before, a) = warm_host(network);
    network(&host).add(&a);
    let broken = network(&host).with("mtu", "many").with("dns", 1);
    broken.with("ipMasq", "yes").del(&a);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn del_keeps_links_that_are_not_of_a_routed_pair() {
    let (host, _, a) = warm_host(network);
    host.ip("link add other type bridge");
    host.ip("link add port type veth peer name eth0 netns a");
    host.ip("link set port master other");
    let outcome = network(&host).on("DEL", &a).run();
    assert!(outcome.stderr.contains("not deleted"), "{outcome:?}");
    assert!(a.has_link("eth0") && host.has_link("port"));
    host.ip("link add eth1 type veth peer name other-end");
    network(&host)
        .on("DEL", &a)
        .ifname("eth1")
        .netns("/proc/self/ns/net")
        .ok();
    assert!(host.has_link("eth1"));
}

#[test]
fn gc_collects_what_the_runtime_does_not_list() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let other = network(&host).with("name", "other");
    let other = other.with("ipam.ranges", json!([[{"subnet": "10.2.0.0/24"}]]));
    let other = other.with("ipam.routes", json!([]));
    for pod in [&a, &b] {
        network(&host).add(pod);
    }
    other.add(&c);
    assert_eq!(network(&host).gc(&[&a]).ok(), Value::Null);
    assert!(host.pings("10.1.0.2") && host.pings("10.2.0.2"));
    assert_eq!(b.links(), ["lo"]);
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(
        !rules.contains("cni:pods/b/") && rules.contains("cni:other/c/"),
        "{rules}"
    );
    let leases: Vec<_> = host.leases("pods").into_keys().collect();
    assert_eq!(leases, ["10.1.0.2", "fd00:1::2"]);
}

#[test]
fn gc_finds_the_pair_of_an_add_that_was_killed_before_its_tag() {
    let (host, before, a) = warm_host(network);
    let result = network(&host).add(&a);
    let end = result["interfaces"][0]["name"].as_str().unwrap();
    host.ip(&format!("link property add dev {end} altname keeps"));
    host.run("ip", &["link", "set", end, "alias", ""]);
    network(&host).gc(&[]).ok();
    host.snapshot().assert_same_as(&before);
}

#[test]
fn failed_add_leaves_nothing() {
    let (host, before, a) = warm_host(network);
    for (dst, gw) in [
        ("10.9.0.0/16", "172.31.0.1"),
        ("fd00:9::/48", "2001:db8:77::1"),
    ] {
        let bad = network(&host).with("ipam.routes", json!([{"dst": dst, "gw": gw}]));
        bad.on("ADD", &a).error().expect(100, &[dst, gw]);
        host.snapshot().assert_same_as(&before);
        assert_eq!(a.links(), ["lo"]);
    }
    network(&host).add(&a);
    assert!(a.pings("10.1.0.1") && a.pings("fd00:1::1"));
}

#[test]
fn second_add_of_the_same_attachment_is_refused_and_the_first_one_works_on() {
    let (host, _, a) = warm_host(network);
    let result = network(&host).add(&a);
    let before = host.snapshot();
    let refusal = network(&host).on("ADD", &a).error();
    assert!(refusal.mentions("eth0"), "{refusal:?}");
    host.snapshot().assert_same_as(&before);
    assert!(a.pings("10.1.0.1") && host.pings("fd00:1::3"));
    network(&host).check(&a, &result).ok();
}
