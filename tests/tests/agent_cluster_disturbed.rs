//! Other programs and hosts disturb nodes whose agents choose the way between VXLAN and direct routes.

use std::time::{Duration, Instant};

use tests::auto::{DIRECT, Scene};
use tests::cluster::{Cluster, LAN};
use tests::{Host, Place as _, eventually};

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
