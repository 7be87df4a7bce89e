//! cni-agent makes routes to the pods of the other nodes. Connections between pods show them.

use std::fs;

use serde_json::json;
use tests::api_server::Answers;
use tests::cluster::{Cluster, LAN};
use tests::traffic::{client_seen, tcp};
use tests::wireguard::ANNOTATION;
use tests::{Host, Place as _, eventually};

/// Routes of node 1 to the pods of node 2, and of node 2 to those of node 1.
const TO_SECOND: [&str; 2] = [
    "10.244.2.0/24 via 192.0.2.2",
    "fd00:10:244:2::/64 via 2001:db8::2",
];

#[test]
fn pods_and_nodes_reach_pods_of_other_nodes_without_nat() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let (first, _agent) = cluster.ready(1);
    let (second, _other) = cluster.ready(2);
    first.expect_routes(&TO_SECOND);
    let [a, b] = [first.pod("a"), second.pod("b")];
    for [own, other] in [
        ["10.244.1.2", "10.244.2.2"],
        ["fd00:10:244:1::2", "fd00:10:244:2::2"],
    ] {
        assert_eq!(client_seen(&a, &b, other), own);
        assert_eq!(client_seen(&b, &a, own), other);
        assert!(tcp(first.place(), &b, other).is_some(), "{other}");
    }
    assert!(
        first
            .http("/metrics")
            .contains("cni_agent_cluster_routes 2")
    );
    assert!(
        first.http("/healthz").contains("ok"),
        "{}",
        first.http("/healthz")
    );
}

#[test]
fn routes_follow_nodes_that_move_leave_and_exchange_networks() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let (first, _agent) = cluster.ready(1);
    let api = &cluster.api;
    api.set("x", &["10.244.2.0/24"], &["192.0.2.2"]);
    api.set("y", &["10.244.3.0/24"], &["192.0.2.3"]);
    first.expect_routes(&["10.244.2.0/24 via 192.0.2.2", "10.244.3.0/24 via 192.0.2.3"]);
    api.set("x", &["10.244.2.0/24"], &["192.0.2.9"]);
    first.expect_routes(&["10.244.2.0/24 via 192.0.2.9", "10.244.3.0/24 via 192.0.2.3"]);
    api.delete("x");
    api.set("z", &["10.244.2.0/24"], &["192.0.2.7"]);
    first.expect_routes(&["10.244.2.0/24 via 192.0.2.7", "10.244.3.0/24 via 192.0.2.3"]);
    api.delete("y");
    first.expect_routes(&["10.244.2.0/24 via 192.0.2.7"]);
}

#[test]
fn routes_that_the_kernel_or_another_program_removes_come_back() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let (first, _agent) = cluster.ready(1);
    let _second = cluster.node(2, LAN);
    first.expect_routes(&TO_SECOND);
    for line in [
        "ip route flush proto 201; ip -6 route flush proto 201",
        "ip route del 10.244.2.0/24",
        "ip link set eth0 down; ip link set eth0 up; ip address replace 2001:db8::1/64 dev eth0 nodad",
        "ip address del 192.0.2.1/24 dev eth0; ip address add 192.0.2.1/24 dev eth0",
    ] {
        first.place().sh(line);
        first.expect_routes(&TO_SECOND);
    }
}

/// Whatever the API server does, an agent that cannot see the nodes removes nothing, and repairs
/// what it knows, also after a new start.
#[test]
fn everything_stays_while_the_api_server_fails() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let (first, agent) = cluster.ready(1);
    let _second = cluster.node(2, LAN);
    first.expect_routes(&TO_SECOND);
    let state = || fs::read_to_string(first.dir().join("nodes.json")).unwrap();
    assert!(eventually(|| state().contains("node-2")), "{}", state());
    let content = fs::read(first.conflist()).unwrap();
    let mut agent = agent;
    for answers in [
        Answers::Away,
        Answers::Status(401),
        Answers::Status(500),
        Answers::Garbage,
        Answers::Never,
    ] {
        cluster.api.answers(answers);
        drop(agent);
        agent = first.agent(&first.sections(&cluster.api));
        first.health_has("cluster: API server: ");
        first.expect_routes(&TO_SECOND);
        first
            .place()
            .sh("ip route flush proto 201; ip -6 route flush proto 201");
        first.expect_routes(&TO_SECOND);
        assert_eq!(fs::read(first.conflist()).unwrap(), content);
    }
    cluster.api.answers(Answers::Emptiness);
    first.health_has("the API server lists no node node-1");
    first
        .place()
        .sh("ip route flush proto 201; ip -6 route flush proto 201");
    first.expect_routes(&TO_SECOND);
    cluster.api.delete("node-2");
    cluster.api.compact();
    first.expect_routes(&[]);
    first.health_has("200 OK");
}

/// As soon as `/healthz` is ok, an update of all agents goes on to the next node.
#[test]
fn agent_is_not_healthy_before_it_has_listed_the_nodes() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.node(1, LAN);
    cluster.api.answers(Answers::Never);
    let _agent = node.agent(&node.sections(&cluster.api));
    let mut first = String::new();
    assert!(eventually(|| {
        first = node.http("/healthz");
        !first.is_empty()
    }));
    assert!(first.contains("has not listed the nodes yet"), "{first}");
}

#[test]
fn agent_that_started_before_the_kubelet_registered_writes_the_conflist() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.machine(1, LAN);
    let _second = cluster.node(2, LAN);
    let _agent = node.agent(&node.sections(&cluster.api));
    node.health_has("the API server lists no node node-1");
    cluster
        .api
        .set("node-1", &["10.244.1.0/24"], &["192.0.2.1"]);
    assert!(eventually(|| node.conflist().exists()), "{}", node.log());
    node.expect_routes(&TO_SECOND);
    assert_eq!(cluster.api.lists(), 1);
}

#[test]
fn watch_goes_on_after_bookmarks_and_lists_again_after_410() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let (first, _agent) = cluster.ready(1);
    let api = &cluster.api;
    api.bookmark();
    api.answers(Answers::Well);
    api.set("x", &["10.244.2.0/24"], &["192.0.2.2"]);
    first.expect_routes(&["10.244.2.0/24 via 192.0.2.2"]);
    assert_eq!(api.lists(), 1);
    api.delete("x");
    api.set("y", &["10.244.3.0/24"], &["192.0.2.3"]);
    api.compact();
    first.expect_routes(&["10.244.3.0/24 via 192.0.2.3"]);
    assert!(eventually(|| api.lists() == 2), "{}", api.lists());
}

#[test]
fn what_cannot_be_routed_is_reported() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.node(1, LAN);
    let place = node.place();
    place.ip("route add 10.244.3.0/24 via 192.0.2.3 proto bird");
    let api = &cluster.api;
    api.set("distant", &["10.244.2.0/24"], &["198.51.100.2"]);
    api.set("foreign", &["10.244.3.0/24"], &["192.0.2.3"]);
    api.set("greedy", &["192.0.2.0/25"], &["192.0.2.4"]);
    api.set("other-family", &["10.244.5.0/24"], &["2001:db8::5"]);
    api.set(
        "strange",
        &["10.244.6.0/99", "10.244.7.0/24"],
        &["192.0.2.7"],
    );
    let agent = node.agent(&node.sections(api));
    node.expect_routes(&["10.244.7.0/24 via 192.0.2.7"]);
    for text in [
        "node distant with the address 198.51.100.2 is in no network of this node",
        "route to 10.244.3.0/24, the pods of node foreign (route protocol 12)",
        "pod CIDR 192.0.2.0/25 of node greedy overlaps the address 192.0.2.1 of this node",
        "node other-family has no InternalIP",
        "node strange: \"10.244.6.0/99\" is no network or address",
    ] {
        agent.says(text);
    }
    let foreign = place.ip("route show 10.244.3.0/24");
    assert_eq!(
        foreign.trim(),
        "10.244.3.0/24 via 192.0.2.3 dev eth0 proto bird"
    );
    place.ip("route replace 10.244.7.0/24 via 192.0.2.8 proto bird");
    agent.says("route to 10.244.7.0/24, the pods of node strange (route protocol 12)");
    place.ip("route del 10.244.7.0/24");
    // An address in the network of the node makes the first one near.
    place.ip("address add 198.51.100.1/24 dev eth0");
    node.expect_routes(&[
        "10.244.2.0/24 via 198.51.100.2",
        "10.244.7.0/24 via 192.0.2.7",
    ]);
    assert!(node.http("/healthz").contains("200 OK"));
}

/// A cluster that has left the mode `wireguard` may have annotations of any kind.
#[test]
fn invalid_key_is_no_problem_without_wireguard() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let (first, _agent) = cluster.ready(1);
    cluster.node(2, LAN);
    cluster.api.annotate("node-2", ANNOTATION, Some("no key"));
    first.expect_routes(&TO_SECOND);
    cluster.api.set("x", &["10.244.3.0/24"], &["192.0.2.3"]);
    let has_routes = || {
        first
            .http("/metrics")
            .contains("cni_agent_cluster_routes 3\n")
    };
    assert!(eventually(has_routes));
    assert!(!first.log().contains("no key"), "{}", first.log());
    assert!(
        first
            .http("/metrics")
            .contains("cni_agent_cluster_problems 0\n")
    );
}

/// An agent that is killed while it writes a file may leave a key.
#[test]
fn unfinished_files_of_an_earlier_agent_are_removed() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.node(1, LAN);
    let networks = node.conflist().parent().unwrap().to_owned();
    fs::create_dir(&networks).unwrap();
    let unfinished = [node.dir(), &networks].map(|it| it.join(".cni-agent-a1b2c3"));
    for file in &unfinished {
        fs::write(file, "key").unwrap();
    }
    let _agent = node.agent(&node.sections(&cluster.api));
    assert!(eventually(|| node.conflist().exists()), "{}", node.log());
    assert!(unfinished.iter().all(|it| !it.exists()));
}

#[test]
fn conflist_waits_for_pod_cidrs_and_touches_no_other_network() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.machine(1, LAN);
    cluster.api.set("node-1", &[], &["192.0.2.1"]);
    let directory = node.conflist().parent().unwrap().to_owned();
    fs::create_dir(&directory).unwrap();
    let other = r#"{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "ptp"}]}"#;
    fs::write(node.conflist(), other).unwrap();
    let _agent = node.agent(&node.sections(&cluster.api));
    node.health_has("node node-1 has no podCIDR; start kube-controller-manager with");
    cluster
        .api
        .set("node-1", &["10.244.1.0/24"], &["192.0.2.1"]);
    node.health_has("10-cluster.conflist has another network");
    assert_eq!(fs::read_to_string(node.conflist()).unwrap(), other);
    // An invalid file is not the agent's, either.
    fs::write(node.conflist(), "{").unwrap();
    let api = &cluster.api;
    api.set("node-1", &["10.244.9.0/24"], &["192.0.2.1"]);
    api.set("node-1", &["10.244.1.0/24"], &["192.0.2.1"]);
    node.health_has("10-cluster.conflist has another network");
    assert_eq!(fs::read_to_string(node.conflist()).unwrap(), "{");
    fs::write(node.conflist(), other).unwrap();
    fs::rename(node.conflist(), directory.join("05-other.conflist")).unwrap();
    node.health_has("05-other.conflist sorts before 10-cluster.conflist");
    fs::remove_file(directory.join("05-other.conflist")).unwrap();
    node.health_has("200 OK");
    let written = fs::read(node.conflist()).unwrap();
    let written: serde_json::Value = serde_json::from_slice(&written).unwrap();
    let bridge = &written["plugins"][0];
    assert_eq!(
        bridge["ipam"]["ranges"],
        json!([[{"subnet": "10.244.1.0/24"}]])
    );
    assert_eq!(bridge["ipam"]["routes"], json!([{"dst": "0.0.0.0/0"}]));
}

/// A cloud creates nodes with the condition, which keeps pods away until a network ends it.
#[test]
fn node_says_when_it_has_a_network() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.machine(1, LAN);
    let api = &cluster.api;
    let conditions = json!([
        {"type": "Ready", "status": "True"},
        {"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"},
    ]);
    api.set("node-1", &[], &["192.0.2.1"]);
    api.set_conditions("node-1", &conditions);
    api.refuse_patches(403);
    let _agent = node.agent(&node.sections(api));
    node.health_has("has no podCIDR");
    assert_eq!(api.object("node-1")["status"]["conditions"], conditions);
    api.set("node-1", &["10.244.1.0/24"], &["192.0.2.1"]);
    node.health_has("set the condition NetworkUnavailable of node-1: ");
    api.refuse_patches(0);
    let has_network = || {
        let object = api.object("node-1");
        let conditions = object["status"]["conditions"].as_array().unwrap();
        conditions.len() == 2
            && conditions[0]["type"] == "Ready"
            && conditions[1]["status"] == "False"
            && conditions[1]["reason"] == "CniAgentIsUp"
    };
    assert!(eventually(has_network), "{}", api.object("node-1"));
    node.health_has("200 OK");
    api.set_conditions("node-1", &conditions);
    assert!(eventually(has_network), "{}", api.object("node-1"));
}

#[test]
fn wrong_configurations_end_the_agent() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.machine(1, LAN);
    let sections = node.sections(&cluster.api);
    for (pointer, value, words) in [
        ("/cluster/mode", json!("ipip"), "unknown variant `ipip`"),
        (
            "/cluster/conflist/file",
            json!("../a.conflist"),
            "expected a file name",
        ),
        (
            "/cluster/conflist/template/name",
            json!("$pods"),
            "unknown placeholder \"$pods\"",
        ),
        (
            "/cluster/conflist/template/plugins",
            json!([]),
            "the list is empty",
        ),
        ("/cluster/clusterCIDRs", json!(["10.244.0.0/33"]), "invalid"),
    ] {
        let mut wrong = sections.clone();
        wrong["cluster"]["clusterCIDRs"] = json!([]);
        *wrong.pointer_mut(pointer).unwrap() = value;
        tests::Agent::run_in(&host, node.dir(), &wrong).expect_failure(&[words]);
    }
}
