//! ptp: a node that switches between the reference and ours, with pods of both.

use serde_json::Value;
use tests::traffic::{tcp, udp};
use tests::{Host, Network, Place as _, eventually};

/// Returns a network without rules, which each plugin adds in its own way.
fn network(host: &Host) -> Network<'_> {
    host.ptp()
}

/// Waits until the host's IPv6 addresses are usable, for which the reference does not wait.
fn settle(host: &Host) {
    let tentative = || host.ip("-6 address show tentative");
    assert!(eventually(|| tentative().is_empty()));
}

/// Returns the state of one attachment, without names and MACs, which each plugin chooses, and without
/// the direct routes of metric 4096. The reference deletes such a route until the link comes up again.
fn shape(host: &Host, pod: &impl tests::Place, result: &Value) -> Vec<String> {
    let end = result["interfaces"][0]["name"].as_str().unwrap();
    let texts = [
        pod.ip("-4 route show table main"),
        pod.ip("-6 route show table main"),
        host.ip(&format!("-4 route show dev {end}")),
        host.addresses(end).join("\n"),
        pod.addresses("eth0").join("\n"),
        host.sysctl(&format!("net/ipv6/conf/{end}/accept_ra"))
            .unwrap(),
    ];
    let lines = texts.iter().flat_map(|text| text.lines());
    let lines = lines.filter(|line| !line.contains("metric 4096"));
    lines.map(|line| line.trim().to_owned()).collect()
}

#[test]
fn kernel_state_and_result_are_those_of_the_reference() {
    let both = [false, true].map(|by_reference| {
        let host = Host::new();
        let a = host.sandbox("a");
        let mut network = network(&host);
        if by_reference {
            network = network.by_reference();
        }
        let mut result = network.add(&a);
        settle(&host);
        let shape = shape(&host, &a, &result);
        for interface in result["interfaces"].as_array_mut().unwrap() {
            interface["mac"] = Value::Null;
        }
        result["interfaces"][0]["name"] = Value::Null;
        // The reference prints an empty object.
        result.as_object_mut().unwrap().remove("dns");
        (shape, result)
    });
    assert_eq!(both[0], both[1]);
}

#[test]
fn pods_of_both_reach_each_other() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    network(&host).by_reference().add(&a);
    network(&host).add(&b);
    settle(&host);
    assert_eq!(b.addresses("eth0"), ["10.1.0.3/24", "fd00:1::3/64"]);
    assert!(tcp(&a, &b, "10.1.0.3").is_some() && tcp(&b, &a, "10.1.0.2").is_some());
    assert!(udp(&a, &b, "fd00:1::3") && udp(&b, &a, "fd00:1::2"));
}

#[test]
fn each_checks_and_deletes_what_the_other_attached() {
    let host = Host::new();
    let (ours, theirs) = (network(&host), network(&host).by_reference());
    let warm = host.sandbox("warm");
    ours.add(&warm);
    ours.del(&warm);
    let before = host.snapshot();
    for (round, (adds, ends)) in [(&ours, &theirs), (&theirs, &ours)].into_iter().enumerate() {
        let a = host.sandbox(&format!("a{round}"));
        let result = adds.add(&a);
        settle(&host);
        assert_eq!(ends.check(&a, &result).ok(), Value::Null);
        ends.clone().with("prevResult", result).del(&a);
        assert_eq!(a.links(), ["lo"]);
        assert!(eventually(|| host.links() == ["lo"]));
        host.snapshot().assert_same_as(&before);
    }
}

#[test]
fn check_finds_what_a_pod_of_the_reference_lost_on_the_host() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = network(&host).by_reference().add(&a);
    settle(&host);
    host.ip("route delete 10.1.0.2/32");
    let refusal = network(&host).check(&a, &result).error();
    assert!(refusal.mentions("10.1.0.2"), "{refusal:?}");
}

#[test]
fn elements_that_the_reference_leaves_of_ours_go_with_our_next_gc() {
    let host = Host::new();
    let network = network(&host).with("ipMasq", true);
    let warm = host.sandbox("warm");
    network.add(&warm);
    network.del(&warm);
    let before = host.snapshot();
    let a = host.sandbox("a");
    network.add(&a);
    // It deletes the pair and then misses a chain of its own; without a sandbox, it looks for none.
    network.by_reference().on("DEL", &a).run();
    network
        .by_reference()
        .on("DEL", &a)
        .without("CNI_NETNS")
        .ok();
    network.gc(&[]).ok();
    host.snapshot().assert_same_as(&before);
}

#[test]
fn reference_leaves_a_new_pod_with_an_old_pods_address_unreachable() {
    let host = Host::new();
    let [old, new] = ["old", "new"].map(|name| host.sandbox(name));
    let ips = serde_json::json!([{"address": "10.1.0.9/24", "gateway": "10.1.0.1"}]);
    let lease = serde_json::json!({"cniVersion": "1.0.0", "ips": ips});
    host.script(
        "leases",
        &format!("[ $CNI_COMMAND != ADD ] || echo '{lease}'"),
    );
    let network = network(&host).with("ipam", serde_json::json!({"type": "leases"}));
    let theirs = |verb: &str, pod| {
        network
            .by_reference()
            .on(verb, pod)
            .env("CNI_PATH", host.search_path())
    };
    theirs("ADD", &old).ok();
    theirs("ADD", &new).ok();
    theirs("DEL", &old).ok();
    assert!(!host.pings("10.1.0.9"), "ours need not choose the new pod");
}
