//! The MTU of tunnels follows the link to the other nodes.

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
    let place = node.place();
    for (mtu, routes) in [
        (1500, &TO_SECOND[..]),
        (1300, &TO_SECOND[..1]),
        (1500, &TO_SECOND),
    ] {
        place.ip(&format!("link set eth0 mtu {mtu}"));
        node.expect_routes(routes);
        place.ip("route del 10.244.2.0/24");
        node.expect_routes(routes);
    }
    for device in ["cni-vxlan4", "cni-vxlan6"] {
        let addresses = || place.link_local_addresses(device);
        assert!(eventually(|| addresses() == [""; 0]), "{:?}", addresses());
        assert_eq!(place.link(device)["inet6_addr_gen_mode"], "none");
    }
}
