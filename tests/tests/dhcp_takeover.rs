//! A lease that another daemon got, before a server confirms it and afterwards.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};

use serde_json::Value;
use tests::dhcp::{ACK, DISCOVER, Daemon, NAK, OFFER, REQUEST, SOCKET, Server, alone, records};
use tests::{Host, Network, Place as _, Sandbox, eventually};

const ADDRESS: [u8; 4] = [10, 6, 0, 50];
const OTHER: [u8; 4] = [10, 6, 0, 51];

/// Returns an attachment whose lease has no record, and its result.
fn foreign<'h>(host: &'h Host, a: &Sandbox) -> (Network<'h>, Value) {
    let network = alone(host, a);
    let _server = Server::leasing(&[ADDRESS], 60);
    let daemon = Daemon::start(host);
    let result = network.add(a);
    daemon.end();
    fs::remove_dir_all(SOCKET.replace(".sock", ".leases")).unwrap();
    a.ip("address add 10.6.0.50/24 dev eth0");
    a.ip("route add default via 10.6.0.1");
    (network, result)
}

/// Linux delivers a RELEASE for 0.0.0.0 to the host itself.
#[test]
fn unconfirmed_lease_has_no_end_and_no_server() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (network, result) = foreign(&host, &a);
    let daemon = Daemon::impatient(&host);
    let refusal = network.check(&a, &result).error();
    refusal.expect(100, &["no DHCP server confirms"]);
    let end = &records()[0]["lease"]["end"]["secs"];
    assert_eq!(end.as_u64(), Some(u64::MAX));
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 67)).unwrap();
    server.set_nonblocking(true).unwrap();
    host.ip("link delete port");
    network.del(&a);
    daemon.says("its server is unknown");
    assert!(records().is_empty());
    server.recv(&mut [0]).unwrap_err();
}

#[test]
fn confirmation_keeps_the_routes_of_other_plugins() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (network, result) = foreign(&host, &a);
    let _server = Server::start(|query| {
        let time = 60_u32.to_be_bytes();
        let more: [(u8, &[u8]); 3] = [
            (1, &[255, 255, 255, 0]),
            (51, &time),
            (121, &[24, 192, 0, 2, 10, 6, 0, 1]),
        ];
        vec![query.answer(ACK, ADDRESS, &more)]
    });
    a.ip("address add fd00:6::2/64 dev eth0 nodad");
    let of_ipv6 = a.ip("-6 route show");
    assert!(of_ipv6.contains("fe80::/64"), "{of_ipv6}");
    let _daemon = Daemon::start(&host);
    network.check(&a, &result).ok();
    assert_eq!(a.ip("-6 route show"), of_ipv6);
    assert_eq!(a.default_gateways(), ["10.6.0.1"]);
    let routes = a.routes();
    assert!(
        routes.iter().any(|it| it["dst"] == "192.0.2.0/24"),
        "{routes:?}"
    );
}

#[test]
fn refusal_ends_an_unconfirmed_lease() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (network, result) = foreign(&host, &a);
    let _server = Server::start(|query| match query.kind {
        DISCOVER => vec![query.lease(OFFER, OTHER, 60)],
        REQUEST if query.wanted().octets() == OTHER => vec![query.lease(ACK, OTHER, 60)],
        REQUEST => vec![query.answer(NAK, [0; 4], &[])],
        _ => Vec::new(),
    });
    let daemon = Daemon::start(&host);
    let refusal = network.check(&a, &result).error();
    refusal.expect(100, &["10.6.0.51/24", "prevResult"]);
    let has_other = || a.addresses("eth0") == ["10.6.0.51/24"];
    assert!(eventually(has_other), "{}", daemon.log());
}
