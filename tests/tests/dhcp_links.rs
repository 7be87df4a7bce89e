//! `dhcp` over links without an end on the host: the lease leaves by the link before the link does.

use serde_json::Value;
use tests::dhcp::{ACK, DISCOVER, Daemon, OFFER, RELEASE, REQUEST, Server, on_card, records};
use tests::{Host, Network, Place as _, Removal, Sandbox, eventually};

const ADDRESSES: [[u8; 4]; 2] = [[10, 6, 0, 50], [10, 6, 0, 51]];

/// Returns the network `pods` of `host-device` on a device whose network is that of `cni0`.
fn device(host: &Host) -> Network<'_> {
    let ipam = tests::dhcp::network(host).config()["ipam"].clone();
    let network = host.nic().with("ipam", ipam);
    host.ip("link set switch master cni0");
    network
}

/// Checks that the server gets the RELEASE number `count` from the leased address, and that the daemon
/// keeps no lease.
fn expect_released(server: &Server, count: usize) {
    let released = || server.seen_of(RELEASE).len() == count;
    assert!(eventually(released), "{count}: {:#?}", server.seen());
    for release in server.seen_of(RELEASE) {
        assert_eq!(*release.from.ip(), release.client, "{release:#?}");
    }
    assert!(records().is_empty());
}

/// Removes the attachment of a sandbox.
fn remove(network: &Network<'_>, way: Removal, a: &Sandbox) {
    let call = match way {
        Removal::Del => network.on("DEL", a),
        Removal::DelForgotten => network.on("DEL", a).without("CNI_NETNS"),
        Removal::Gc => network.gc(&[]),
    };
    assert_eq!(call.ok(), Value::Null);
}

#[test]
fn lease_over_a_device_of_the_host_is_released_before_the_device_returns() {
    let host = Host::new();
    let network = device(&host);
    let server = Server::leasing(&ADDRESSES, 60);
    let _daemon = Daemon::start(&host);
    let before = host.snapshot();
    for (number, way) in (1..).zip(Removal::ALL) {
        let a = host.sandbox(&format!("a{number}"));
        let result = network.add(&a);
        assert!(a.pings("10.6.0.1"));
        network.check(&a, &result).ok();
        remove(&network, way, &a);
        expect_released(&server, number);
        host.snapshot().assert_same_as(&before);
        assert_eq!(a.links(), ["lo"]);
    }
}

#[test]
fn failed_add_of_a_device_releases_its_lease() {
    let host = Host::new();
    let network = device(&host);
    // The router is in no subnet of the address.
    let server = Server::start(|query| {
        let kind = match query.kind {
            DISCOVER => OFFER,
            REQUEST => ACK,
            _ => return Vec::new(),
        };
        let options: [(u8, &[u8]); 3] = [
            (1, &[255, 255, 255, 0]),
            (3, &[198, 51, 100, 1]),
            (51, &[0, 0, 0, 60]),
        ];
        vec![query.answer(kind, ADDRESSES[0], &options)]
    });
    let _daemon = Daemon::start(&host);
    let before = host.snapshot();
    let a = host.sandbox("a");
    network.on("ADD", &a).error();
    expect_released(&server, 1);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn pods_of_macvlan_lease_by_macs_of_their_own() {
    let host = Host::new();
    let network = on_card(&host, "macvlan");
    let server = Server::leasing(&ADDRESSES, 60);
    let _daemon = Daemon::start(&host);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let results = [&a, &b].map(|pod| network.add(pod));
    assert!(a.pings("10.6.0.1") && a.pings("10.6.0.51"));
    for (pod, result) in [&a, &b].into_iter().zip(&results) {
        network.check(pod, result).ok();
        let client = format!("\0{}/pods/eth0", pod.name());
        let query = server.sees(|it| it.kind == DISCOVER && it.text(61) == client);
        assert_eq!(query.mac(), pod.mac("eth0"));
        assert!(!query.broadcast);
    }
    network.del(&a);
    let released = server.sees(|it| it.kind == RELEASE);
    assert_eq!(released.from.ip().octets(), ADDRESSES[0]);
    network.gc(&[]).ok();
    expect_released(&server, 2);
    assert!(!a.has_link("eth0") && !b.has_link("eth0"));
}
