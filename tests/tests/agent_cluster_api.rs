//! cni-agent notices when the API server answers no more, and when it answers again.

use std::fs;
use std::time::Duration;

use tests::api_server::Answers;
use tests::cluster::{Cluster, LAN};
use tests::{Host, Place as _, eventually, pause};

#[test]
fn credentials_are_read_again_after_a_failure() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.node(1, LAN);
    let sections = node.sections(&cluster.api);
    let file = node.dir().join("kubeconfig");
    let right = fs::read_to_string(&file).unwrap();
    fs::write(&file, right.replace("http://", "http://127.0.0.1:1/")).unwrap();
    let _agent = node.agent(&sections);
    node.health_has("cluster: API server: failed to perform initial object list");
    fs::write(&file, right).unwrap();
    node.health_has("200 OK");
}

#[test]
fn silent_server_stays_a_failure() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let (node, _agent) = cluster.ready(1);
    node.health_has("200 OK");
    cluster.api.answers(Answers::Away);
    node.health_has("cluster: API server: ");
    cluster.api.answers(Answers::Never);
    pause(Duration::from_secs(25));
    node.health_has("cluster: API server: ");
    let metrics = node.http("/metrics");
    assert!(
        metrics.contains("cni_agent_cluster_api_server_connected 0\n"),
        "{metrics}"
    );
    cluster.api.answers(Answers::Well);
    node.health_has("200 OK");
}

/// Without a packet, only time shows that a connection is dead.
#[test]
fn dead_connection_is_noticed_within_80_s() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let (node, agent) = cluster.ready(1);
    node.health_has("200 OK");
    node.place().sh(
        "nft 'add table ip cut; add chain ip cut in { type filter hook input priority 0; }; \
             add rule ip cut in tcp sport != 0 drop'",
    );
    pause(Duration::from_secs(50));
    let failures = ["watch stream failed", "failed to start watching object"];
    let is_noticed = || failures.iter().any(|it| agent.log().contains(it));
    assert!(eventually(is_noticed), "{}", agent.log());
}
