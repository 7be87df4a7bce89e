//! cnitool doctor: routes to the pods of the other nodes of a cluster.

use serde_json::Value;
use tests::cluster::{Cluster, LAN, Node, WAN};
use tests::{Findings, Host, Place as _};

#[test]
fn routes_are_compared_with_the_nodes() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.node(1, LAN);
    let _second = cluster.node(2, WAN);
    cluster.api.set("greedy", &["192.0.2.0/25"], &["192.0.2.4"]);
    assert!(!is_judged(&node.doctor()), "no agent has run");
    let agent = node.agent(&sections(&node, &cluster, "vxlan"));
    let routes = [
        "10.244.2.0/24 via 10.244.2.0",
        "fd00:10:244:2::/64 via fe80::",
    ];
    node.expect_routes(&routes);
    node.health_has("200 OK");
    drop(agent);
    let greedy = ["192.0.2.0/25 of node greedy overlaps the address 192.0.2.1"];
    let findings = node.doctor();
    findings.expect("warning", "cluster", &greedy);
    assert!(!findings.holds("problem", "cluster", &[]));
    node.place().ip("neigh del 10.244.2.0 dev cni-vxlan4");
    let entry = "10.244.2.0/24 (node node-2) uses cni-vxlan4, which has no entry for 10.244.2.0";
    node.doctor().expect("problem", "cluster", &[entry]);
    node.place().ip("link set cni-vxlan4 down");
    node.doctor().expect(
        "problem",
        "cluster",
        &["no route to 10.244.2.0/24 (node node-2)"],
    );
    node.place()
        .ip("route add 10.244.2.0/24 via 192.0.2.7 proto bird");
    let other = "10.244.2.0/24 (node node-2) leads to 192.0.2.7, not to 198.51.100.2";
    node.doctor().expect("problem", "cluster", &[other]);
    cluster.api.delete("greedy");
    let _agent = node.agent(&sections(&node, &cluster, "none"));
    node.expect_routes(&[]);
    node.health_has("200 OK");
    assert!(!is_judged(&node.doctor()), "another program makes routes");
}

/// Returns the sections of an agent with this mode and the default state file.
fn sections(node: &Node, cluster: &Cluster, mode: &str) -> Value {
    let mut sections = node.sections(&cluster.api);
    let section = sections["cluster"].as_object_mut().unwrap();
    section.remove("stateFile");
    section.insert("mode".to_owned(), mode.into());
    sections
}

fn is_judged(findings: &Findings) -> bool {
    let mut levels = ["ok", "warning", "problem"].into_iter();
    levels.any(|it| findings.holds(it, "cluster", &[]))
}

#[test]
fn nodes_that_do_not_answer_and_frames_to_other_hosts_are_named() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let [first, second] = [(1, LAN), (2, WAN)].map(|it| cluster.node(it.0, it.1));
    let agent = first.agent(&sections(&first, &cluster, "vxlan"));
    let (second, _agent) = cluster.started(second, "vxlan");
    for node in [&first, &second] {
        node.health_has("200 OK");
    }
    first
        .doctor()
        .expect("ok", "cluster", &["to the pods of 1 other node"]);
    second.place().sh(
        "nft 'add table inet closed; add chain inet closed in { type filter hook input priority 0; }; \
         add rule inet closed in udp dport 4789 drop'",
    );
    let silent = [
        "no answer from 10.244.2.0 (node node-2)",
        "the tunnel's UDP port",
    ];
    first.doctor().expect("warning", "cluster", &silent);
    second.place().sh("nft delete table inet closed");
    drop(agent);
    first.place().sh(
        "mac=$(ip neigh show 10.244.2.0 dev cni-vxlan4 | sed 's/.*lladdr \\([^ ]*\\).*/\\1/'); \
         bridge fdb replace $mac dev cni-vxlan4 dst 198.51.100.77 self permanent",
    );
    let wrong = [
        "10.244.2.0/24 (node node-2) uses cni-vxlan4, which does not send",
        "to 198.51.100.2",
    ];
    first.doctor().expect("problem", "cluster", &wrong);
}
