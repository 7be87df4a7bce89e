//! The MTU of tunnels follows the link to the other nodes.

use std::fs;

use tests::cluster::{Cluster, LAN, WAN};
use tests::{Host, Place as _, eventually};

const TO_SECOND: [&str; 2] = [
    "10.244.2.0/24 via 10.244.2.0",
    "fd00:10:244:2::/64 via fe80::",
];

/// The kernel has no IPv6 on devices whose MTU is smaller than 1280.
#[test]
fn small_mtu_ends_ipv6_alone() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let _second = cluster.node(2, WAN);
    let node = cluster.node(1, LAN);
    node.place().ip("link set eth0 mtu 1300");
    let (node, agent) = cluster.started(node, "vxlan");
    node.expect_routes(&TO_SECOND[..1]);
    agent.says("the kernel refuses entries of cni-vxlan6: ");
    let content = fs::read_to_string(node.conflist()).unwrap();
    assert!(
        content.contains("10.244.1.") && !content.contains("fd00:"),
        "{content}"
    );
    let place = node.place();
    for (mtu, routes) in [
        (1500, &TO_SECOND[..]),
        (1300, &TO_SECOND[..1]),
        (1500, &TO_SECOND),
    ] {
        place.ip(&format!("link set eth0 mtu {mtu}"));
        node.expect_routes(routes);
        let offers_ipv6 = || {
            fs::read_to_string(node.conflist())
                .unwrap()
                .contains("fd00:")
        };
        assert!(eventually(|| offers_ipv6() == (mtu == 1500)), "{mtu}");
        place.ip("route del 10.244.2.0/24");
        node.expect_routes(routes);
    }
    for device in ["cni-vxlan4", "cni-vxlan6"] {
        let addresses = || place.link_local_addresses(device);
        assert!(eventually(|| addresses() == [""; 0]), "{:?}", addresses());
        assert_eq!(place.link(device)["inet6_addr_gen_mode"], "none");
    }
}

/// Nodes that announce their addresses by a routing protocol have them on `lo`, for example.
#[test]
fn address_on_a_loopback_link_takes_the_mtu_of_the_routes_to_nodes() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.node(1, LAN);
    let place = node.place();
    place.ip("address add 198.18.0.1/32 dev lo");
    place.ip("address add 2001:db8:9::1/128 dev lo");
    let api = &cluster.api;
    let networks = ["10.244.1.0/24", "fd00:10:244:1::/64"];
    api.set("node-1", &networks, &["198.18.0.1", "2001:db8:9::1"]);
    place.ip("link set eth0 mtu 1400");
    let (node, _agent) = cluster.started(node, "vxlan");
    let mtus = || ["cni-vxlan4", "cni-vxlan6"].map(|it| node.place().link(it)["mtu"].as_u64());
    assert!(
        eventually(|| mtus() == [Some(1350), Some(1330)]),
        "{:?}",
        mtus()
    );
    node.place().ip("link set eth0 mtu 1500");
    assert!(
        eventually(|| mtus() == [Some(1450), Some(1430)]),
        "{:?}",
        mtus()
    );
    cluster.node(2, WAN);
    node.expect_routes(&TO_SECOND);
    assert_eq!(mtus(), [Some(1450), Some(1430)]);
}
