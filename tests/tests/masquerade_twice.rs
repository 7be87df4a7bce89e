//! bridge and ptp: masquerading for two attachments with one address, as when a runtime recreates a
//! pod before it deletes the old one.

use serde_json::{Value, json};
use tests::repair::{PERIOD, agent, flush, number, pass, sections};
use tests::traffic::tcp;
use tests::{Host, Network, Place as _, Sandbox, Tool, eventually};

/// Returns a network of the interface plugin `network` whose containers all have one address.
fn fixed<'h>(network: &Network<'h>) -> Network<'h> {
    network.clone().with_one_address().with("ipMasq", true)
}

/// Checks that `outside` sees the host's address as the source of the pod's packets.
#[track_caller]
fn is_masqueraded(pod: &Sandbox, outside: &Sandbox) {
    let seen = ["192.0.2.2", "2001:db8::2"].map(|address| tcp(pod, outside, address));
    let wanted = ["192.0.2.1", "2001:db8::1"].map(|it| it.parse().ok());
    assert_eq!(seen, wanted, "{}", pod.name());
}

/// Returns the owners of the elements in these maps, in the order of the maps.
fn owners<const N: usize>(host: &Host, maps: [&str; N]) -> [Vec<String>; N] {
    maps.map(|map| {
        let listed = host.run("nft", &["list", "map", "inet", "cni-masquerade", map]);
        let comments = listed.split("comment \"cni:pods/").skip(1);
        let owners = comments.filter_map(|it| it.split('/').next());
        let mut owners: Vec<_> = owners.map(str::to_owned).collect();
        owners.sort();
        owners
    })
}

const MAPS: [&str; 3] = ["pods4", "pods6", "standby"];

fn reload(network: &Network<'_>, pod: &Sandbox, result: &Value) {
    let reload = network.clone().with("prevResult", result.clone());
    assert_eq!(reload.on("RELOAD", pod).ok(), Value::Null);
}

#[test]
fn the_old_pod_is_masqueraded_again_when_the_new_one_is_deleted_or_fails() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [old, new, failed] = ["old", "new", "failed"].map(|name| host.sandbox(name));
    let network = fixed(&host.ptp());
    let first = network.add(&old);
    let before = host.snapshot();
    network.add(&new);
    is_masqueraded(&new, &outside);
    assert_eq!(
        owners(&host, MAPS),
        [vec!["new"], vec!["new"], vec!["old"; 2]]
    );
    network.del(&new);
    is_masqueraded(&old, &outside);
    host.snapshot().assert_same_as(&before);
    let unreachable = json!([{"dst": "10.9.0.0/16", "gw": "172.31.0.1"}]);
    let failing = network.clone().with("ipam.routes", unreachable);
    failing
        .on("ADD", &failed)
        .error()
        .expect(100, &["172.31.0.1"]);
    is_masqueraded(&old, &outside);
    host.snapshot().assert_same_as(&before);
    assert_eq!(network.check(&old, &first).ok(), Value::Null);
    network.del(&old);
    assert_eq!(owners(&host, MAPS), <[Vec<String>; 3]>::default());
}

#[test]
fn ports_of_a_bridge_hand_the_address_over_in_any_order() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let network = fixed(&host.bridge().with("isGateway", true));
    let pods = ["a", "b", "c", "d"].map(|name| host.sandbox(name));
    for pod in &pods {
        network.add(pod);
    }
    assert_eq!(owners(&host, ["pods4"]), [["d"]]);
    for leaves in [1, 3, 0] {
        network.del(&pods[leaves]);
    }
    assert_eq!(owners(&host, MAPS), [vec!["c"], vec!["c"], vec![]]);
    is_masqueraded(&pods[2], &outside);
    network.gc(&[]).ok();
    assert_eq!(owners(&host, MAPS), <[Vec<String>; 3]>::default());
}

#[test]
fn reloads_in_any_order_keep_both_pods() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let network = fixed(&host.ptp());
    let [old, new] = ["old", "new"].map(|name| host.sandbox(name));
    let pods = [(&old, network.add(&old)), (&new, network.add(&new))];
    let rules = host.run("nft", &["list", "ruleset"]);
    for (pod, result) in &pods {
        reload(&network, pod, result);
        assert_eq!(host.run("nft", &["list", "ruleset"]), rules);
    }
    flush(&host);
    for (pod, result) in &pods {
        reload(&network, pod, result);
    }
    assert_eq!(
        owners(&host, MAPS),
        [vec!["old"], vec!["old"], vec!["new"; 2]]
    );
    network.del(&old);
    is_masqueraded(&new, &outside);
}

#[test]
fn a_pod_whose_link_is_gone_gets_no_address_back() {
    let host = Host::new();
    let network = fixed(&host.ptp());
    let [old, new] = ["old", "new"].map(|name| host.sandbox(name));
    let first = network.add(&old);
    network.add(&new);
    let host_end = first["interfaces"][0]["name"].as_str().unwrap();
    host.ip(&format!("link delete {host_end}"));
    network.del(&new);
    assert_eq!(owners(&host, MAPS), <[Vec<String>; 3]>::default());
}

#[test]
fn a_pod_that_stands_by_passes_check() {
    let host = Host::new();
    let network = fixed(&host.bridge().with("isGateway", true));
    let [old, new] = ["old", "new"].map(|name| host.sandbox(name));
    let pods = [(&old, network.add(&old)), (&new, network.add(&new))];
    for (pod, result) in &pods {
        assert_eq!(network.check(pod, result).ok(), Value::Null);
    }
    host.run(
        "nft",
        &["flush", "map", "inet", "cni-masquerade", "standby"],
    );
    let (pod, result) = &pods[0];
    let difference = ["element", "pods4", "is missing"];
    network.check(pod, result).error().expect(100, &difference);
}

#[test]
fn a_pod_gets_its_address_although_the_element_of_the_other_one_is_gone() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let network = fixed(&host.ptp());
    let [old, new] = ["old", "new"].map(|name| host.sandbox(name));
    network.add(&old);
    network.add(&new);
    // So does a DEL that is killed after it has deleted the elements, or another program.
    for map in ["pods4", "pods6"] {
        host.run("nft", &["flush", "map", "inet", "cni-masquerade", map]);
    }
    network.del(&new);
    is_masqueraded(&old, &outside);
    assert_eq!(owners(&host, MAPS), [vec!["old"], vec!["old"], vec![]]);
}

#[test]
fn a_pod_whose_link_has_no_tag_gets_its_address_back() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let network = fixed(&host.ptp());
    let [old, new] = ["old", "new"].map(|name| host.sandbox(name));
    let first = network.add(&old);
    network.add(&new);
    // The Go plugins tag no link.
    let host_end = first["interfaces"][0]["name"].as_str().unwrap();
    host.run("ip", &["link", "set", host_end, "alias", ""]);
    network.del(&new);
    is_masqueraded(&old, &outside);
}

#[test]
fn the_agent_reloads_neither_pod_while_both_have_the_address() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [old, new] = ["old", "new"].map(|name| host.sandbox(name));
    let tool: Tool<'_> = host.tool();
    tool.configure("pods", &[fixed(&host.ptp()).config().clone()]);
    tool.add("pods", &old, &[]);
    let agent = agent(&host, &sections());
    tool.add("pods", &new, &[]);
    pass(2 * PERIOD);
    assert_eq!(number("repair_reloads_total"), Some(1), "{}", agent.log());
    flush(&host);
    let elements = || {
        let ruleset = host.run("nft", &["list", "ruleset"]);
        ruleset.matches("comment \"cni:pods/").count()
    };
    assert!(eventually(|| elements() == 4), "{}", agent.log());
    pass(2 * PERIOD);
    let reloads = number("repair_reloads_total");
    pass(2 * PERIOD);
    assert_eq!(number("repair_reloads_total"), reloads, "{}", agent.log());
    is_masqueraded(&new, &outside);
    tool.on("del", "pods", &new).ok();
    pass(2 * PERIOD);
    assert_eq!(number("repair_reloads_total"), reloads, "{}", agent.log());
    assert_eq!(number("repair_unrepaired"), Some(0), "{}", agent.log());
    is_masqueraded(&old, &outside);
}
