//! cni-agent keeps the networks between which packets of pods keep their address.

use serde_json::json;
use tests::cluster::{Cluster, LAN, Node};
use tests::traffic::client_seen;
use tests::{Host, Place as _, eventually};

/// Nodes join and leave in orders in which ranges grow together and fall apart.
#[test]
fn pods_are_masqueraded_to_all_but_pods_of_the_cluster() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let (first, _agent) = cluster.ready(1);
    let a = first.pod("a");
    let (second, _other) = cluster.ready(2);
    let b = second.pod("b");
    assert_eq!(client_seen(&a, &b, "10.244.2.2"), "10.244.1.2");
    assert_eq!(client_seen(&a, second.place(), "192.0.2.2"), "192.0.2.1");
    expect(&first, "10.244.1.0-10.244.2.255");
    let set = |number: u8| {
        let [network, address] = [format!("10.244.{number}.0/24"), format!("192.0.2.{number}")];
        cluster
            .api
            .set(&format!("n{number}"), &[&network], &[&address]);
    };
    set(5);
    expect(&first, "10.244.1.0-10.244.2.255 10.244.5.0/24");
    set(4);
    expect(&first, "10.244.1.0-10.244.2.255 10.244.4.0/23");
    set(3);
    expect(&first, "10.244.1.0-10.244.5.255");
    cluster.api.delete("n4");
    expect(&first, "10.244.1.0-10.244.3.255 10.244.5.0/24");
    for line in [
        "nft flush set inet cni-masquerade cluster-v4",
        "nft delete element inet cni-masquerade cluster-v4 '{ 10.244.5.0/24 }'",
        "nft delete table inet cni-masquerade",
    ] {
        first.place().sh(line);
        expect(&first, "10.244.1.0-10.244.3.255 10.244.5.0/24");
    }
}

#[test]
fn networks_of_the_configuration_count_instead_of_pod_cidrs() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let first = cluster.node(1, LAN);
    let mut sections = first.sections(&cluster.api);
    sections["cluster"]["clusterCIDRs"] = json!(["10.244.0.0/16", "10.244.1.0/24"]);
    let _agent = first.agent(&sections);
    expect(&first, "10.244.0.0/16");
}

/// Expects the networks of IPv4 between which packets keep their address.
fn expect(node: &Node<'_>, networks: &str) {
    let mut found = String::new();
    let is_expected = eventually(|| {
        let table = node.place().rules_from("inet cni-masquerade");
        let set = table.split("set cluster-v4").nth(1).unwrap_or_default();
        let set = set.split("set cluster-v6").next().unwrap_or_default();
        let words = set.split(|it: char| it.is_whitespace() || it == ',');
        let words: Vec<_> = words.filter(|it| it.starts_with("10.")).collect();
        found = words.join(" ");
        found == networks
    });
    assert!(is_expected, "{found}\n{}", node.log());
}
