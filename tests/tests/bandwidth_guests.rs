//! bandwidth: sandboxes whose programs do not use the kernel's own IP at the container's end, as those
//! of gVisor (packet sockets) and Kata (a tap of a virtual machine).

use tests::Place as _;
use tests::escape::{self, Header, Way, datagram};
use tests::limited::RoutedContainer;

/// Checks that frames from the sandbox and to it keep to 10 Mbit/s.
fn expect_limited(scene: &RoutedContainer, (link, way): (&str, Way)) {
    let (host, a, outside) = (&scene.host, &scene.a, &scene.outside);
    let (bridge, near) = (host.mac("cni0"), a.mac("eth0"));
    let (uplink, far) = (host.mac("uplink"), outside.mac("outside"));
    host.ip(&format!(
        "neighbour replace 10.1.0.2 lladdr {near} dev cni0"
    ));
    let sent = Header {
        to: &bridge,
        from: &near,
        types: &[0x0800],
    };
    let received = Header {
        to: &uplink,
        from: &far,
        ..sent
    };
    let [out, back] = [
        ([10, 1, 0, 2], [192, 0, 2, 2]),
        ([192, 0, 2, 2], [10, 1, 0, 2]),
    ];
    let [out, back] = [out, back].map(|(from, to)| datagram(from, to));
    let sent = escape::pour((a, link, way), (&sent, &out), (outside, "outside"), 3);
    let from = (outside, "outside", Way::Queued);
    let received = escape::pour(from, (&received, &back), (a, "eth0"), 3);
    for rates in [sent, received] {
        let later = f64::midpoint(rates[1], rates[2]);
        assert!(later > 8.0 && later < 10.5, "{rates:?}");
    }
}

#[test]
fn sandbox_with_packet_sockets_is_limited() {
    let scene = RoutedContainer::new();
    let network = scene.limited(10_000_000);
    let result = network.add(&scene.a);
    // gVisor takes the address from the link.
    let address = scene.a.addresses("eth0").remove(0);
    scene.a.ip(&format!("address delete {address} dev eth0"));
    expect_limited(&scene, ("eth0", Way::Queued));
    network.check(&scene.a, &result).ok();
}

#[test]
fn sandbox_with_a_virtual_machine_behind_a_tap_is_limited() {
    let scene = RoutedContainer::new();
    let network = scene.limited(10_000_000);
    let (a, result) = (&scene.a, network.add(&scene.a));
    a.ip("tuntap add tap0 mode tap");
    a.ip("link set tap0 up");
    for (from, to) in [("eth0", "tap0"), ("tap0", "eth0")] {
        a.tc(&format!("qdisc add dev {from} ingress"));
        let filter = format!("filter add dev {from} ingress protocol all u32 match u32 0 0");
        a.tc(&format!("{filter} action mirred egress redirect dev {to}"));
    }
    expect_limited(&scene, ("tap0", Way::Tap));
    network.check(a, &result).ok();
    network.add(a);
    network.check(a, &result).ok();
}
