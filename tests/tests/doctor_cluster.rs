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
