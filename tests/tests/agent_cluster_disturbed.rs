//! Other programs and hosts disturb nodes whose agents choose the way between VXLAN and direct routes.

use std::time::{Duration, Instant};

use tests::auto::{DIRECT, Scene, TUNNEL, addresses};
use tests::cluster::{Cluster, LAN, WAN};
use tests::traffic::client_seen;
use tests::{Agent, Host, Place as _, eventually, pause};

/// While a host floods nodes with datagrams to ports that no program uses, their kernels limit ICMP
/// errors.
#[test]
fn nodes_that_send_no_icmp_errors_become_direct() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let nodes = [(LAN, "auto"), (LAN, "auto")];
    let scene = Scene::with(&host, cluster, &nodes, |place| {
        place.set_sysctl("net/ipv4/icmp_ratelimit", "1000000");
        place.set_sysctl("net/ipv6/icmp/ratelimit", "1000000");
    });
    scene.expect_ways([1, 2], DIRECT);
}

/// The end of a tunnel that is made again is also the anycast address of the bridge of pods.
#[test]
fn node_whose_tunnel_is_younger_than_its_bridge_becomes_direct() {
    let host = Host::new();
    let scene = Scene::new(&host, &[(LAN, "auto"), (LAN, "auto")]);
    scene.expect_ways([1, 2], DIRECT);
    let local = || {
        let routes = scene
            .place(2)
            .ip("-6 route show table local fd00:10:244:2::");
        routes.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    scene.place(2).ip("link del cni-vxlan6");
    let start = Instant::now();
    assert!(eventually(|| local().len() == 2), "{:?}", local());
    assert!(local()[0].starts_with("anycast"), "{:?}", local());
    // The agents try all routes again.
    assert!(eventually(|| start.elapsed() > Duration::from_secs(14)));
    scene.expect_ways([1, 2], DIRECT);
}

/// A probe needs `CAP_NET_RAW`.
#[test]
fn agent_that_may_not_probe_reports_it_once() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.node(1, LAN);
    cluster.object(2, LAN);
    let words = ["setpriv", "--bounding-set", "-net_raw"].map(str::to_owned);
    let run = Agent::run_in(&host, node.dir(), &cluster.sections(&node, "auto")).under(&words);
    let agent = node.place().enter(|| Agent::spawn_in(node.dir(), &run));
    node.health_has("cluster: direct routes: cannot try them: ");
    // The agent tries all routes again.
    pause(Duration::from_secs(14));
    let log = agent.log();
    assert_eq!(log.matches("direct routes").count(), 1, "{log}");
}

#[test]
fn foreign_route_with_a_metric_is_reported_and_packets_take_the_tunnel() {
    let host = Host::new();
    let scene = Scene::new(&host, &[(LAN, "auto"), (WAN, "auto")]);
    let place = scene.place(1);
    place.ip("route add 10.244.2.0/24 via 192.0.2.254 metric 100 proto bird");
    place.ip("route add fd00:10:244:2::/64 via 2001:db8::254 metric 1500 proto bird");
    assert_eq!(scene.ways(1, 2), TUNNEL);
    // A new node lets the agent look.
    scene.cluster.object(9, LAN);
    for (family, network) in [("-4", "10.244.2.0/24"), ("-6", "fd00:10:244:2::/64")] {
        scene.nodes[0].1.says(&format!(
            "another program has made a route to {network}, the pods of node node-2"
        ));
        let foreign = place.ip(&format!("{family} route show {network} proto bird"));
        assert_eq!(foreign.lines().count(), 1, "{foreign}");
    }
}

/// The kernel accepts no gateway that only a route of the scope `global` reaches.
#[test]
fn refused_direct_route_is_reported_and_packets_take_the_tunnel() {
    let host = Host::new();
    let scene = Scene::new(&host, &[(LAN, "auto"), (LAN, "auto")]);
    scene.expect_ways([1, 2], DIRECT);
    let place = scene.place(1);
    place.ip("route del 192.0.2.0/24 dev eth0");
    place.ip("route add 192.0.2.0/24 dev eth0 scope global");
    // The node moves, so the direct route is another one.
    scene.place(2).ip("address add 192.0.2.9/24 dev eth0");
    let networks = ["10.244.2.0/24", "fd00:10:244:2::/64"];
    let api = &scene.cluster.api;
    api.set("node-2", &networks, &["192.0.2.9", "2001:db8::2"]);
    assert!(eventually(|| scene.ways(1, 2) == [TUNNEL[0], DIRECT[1]]));
    scene.nodes[0]
        .1
        .says("the kernel refuses one of the routes to 10.244.2.0/24, the pods of node node-2");
    let old = || place.ip("route show via 192.0.2.2");
    assert!(eventually(|| old().is_empty()), "{}", old());
    for (own, other) in addresses(1).iter().zip(&addresses(2)) {
        let seen = || client_seen(scene.pod(1), scene.pod(2), other);
        assert!(eventually(|| seen() == *own));
    }
    let metrics = scene.nodes[0].0.http("/metrics");
    assert!(
        metrics.contains("cni_agent_cluster_routes 2\n"),
        "{metrics}"
    );
}

/// udev sets sysctls of new links, such as `rp_filter`, and no event reports it.
#[test]
fn reverse_path_filter_that_another_program_sets_is_repaired() {
    let host = Host::new();
    let scene = Scene::new(&host, &[(LAN, "auto")]);
    let place = scene.place(1);
    // The agent repairs it also after other events, such as those of the pod.
    let start = Instant::now();
    assert!(eventually(|| start.elapsed() > Duration::from_secs(8)));
    for tunnel in TUNNEL {
        place.set_sysctl(&format!("net/ipv4/conf/{tunnel}/rp_filter"), "1");
    }
    let values = || TUNNEL.map(|it| place.sysctl(&format!("net/ipv4/conf/{it}/rp_filter")));
    let is_repaired =
        (0..3).any(|_| eventually(|| values() == ["2", "2"].map(|it| Some(it.into()))));
    assert!(is_repaired, "{:?}", values());
}
