//! `dhcp` over links without an end on the host: the lease leaves by the link before the link does.

use tests::dhcp::{DISCOVER, Daemon, RELEASE, Server, on_card, records};
use tests::{Host, Place as _, eventually};

const ADDRESSES: [[u8; 4]; 2] = [[10, 6, 0, 50], [10, 6, 0, 51]];

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
