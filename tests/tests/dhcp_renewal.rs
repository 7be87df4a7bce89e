//! A lease that is extended, changed or lost changes the interface.

use tests::dhcp::{ACK, DISCOVER, Daemon, NAK, OFFER, REQUEST, SOCKET, Server, network, records};
use tests::{Host, Place as _, Sandbox, eventually};

const FIRST: [u8; 4] = [10, 6, 0, 50];
const SECOND: [u8; 4] = [10, 6, 0, 51];

#[track_caller]
fn expect_address(a: &Sandbox, daemon: &Daemon, addresses: &[&str]) {
    let has = || a.addresses("eth0") == addresses;
    assert!(
        eventually(has),
        "{:?}: {}",
        a.addresses("eth0"),
        daemon.log()
    );
}

#[test]
fn lease_is_renewed_with_its_server_alone() {
    let host = Host::new();
    let network = network(&host);
    let server = Server::renewing(&[FIRST]);
    let daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    let result = network.add(&a);
    let discovered = server.seen_of(DISCOVER).len();
    let renewal = server.sees(|it| it.kind == REQUEST && it.client.octets() == FIRST);
    assert_eq!(renewal.from.ip().octets(), FIRST);
    for option in [50, 54] {
        assert!(!renewal.options.contains_key(&option), "{renewal:?}");
    }
    assert_eq!(renewal.text(61), "\0a/pods/eth0");
    expect_address(&a, &daemon, &["10.6.0.50/24"]);
    network.check(&a, &result).ok();
    assert_eq!(server.seen_of(DISCOVER).len(), discovered);
}

#[test]
fn lease_is_renewed_although_all_its_times_are_the_same() {
    let host = Host::new();
    let network = network(&host);
    let server = Server::start(|query| {
        let kind = if query.kind == DISCOVER { OFFER } else { ACK };
        let time = 4_u32.to_be_bytes();
        let mask: (u8, &[u8]) = (1, &[255, 255, 255, 0]);
        let times: [(u8, &[u8]); 3] = [(51, &time), (58, &time), (59, &time)];
        vec![query.answer(kind, FIRST, &[&[mask], &times[..]].concat())]
    });
    let daemon = Daemon::start(&host);
    network.add(&host.sandbox("a"));
    server.sees(|it| it.kind == REQUEST && it.client.octets() == FIRST);
    assert!(!daemon.log().contains("is lost"), "{}", daemon.log());
}

#[test]
fn all_servers_are_asked_when_the_own_one_is_silent() {
    let host = Host::new();
    let network = network(&host);
    // The other server answers only what is sent to all.
    let server = Server::start(|query| match (query.kind, query.client.is_unspecified()) {
        (DISCOVER, _) => vec![query.lease(OFFER, FIRST, 1)],
        (REQUEST, true) => vec![query.lease(ACK, FIRST, 1)],
        _ => Vec::new(),
    });
    let daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    network.add(&a);
    let own = server.sees(|it| it.kind == REQUEST && it.client.octets() == FIRST);
    assert!(!own.options.contains_key(&54));
    daemon.says("it has expired");
    let count = || {
        server
            .seen_of(REQUEST)
            .iter()
            .filter(|it| !it.client.is_unspecified())
            .count()
    };
    assert!(count() > 1, "T1 and T2");
}

#[test]
fn routes_of_a_renewed_lease_replace_the_former_ones() {
    let host = Host::new();
    let network = network(&host);
    let _server = Server::start(|query| {
        let (kind, gateway) = match (query.kind, query.client.is_unspecified()) {
            (DISCOVER, _) => (OFFER, 1),
            (REQUEST, true) => (ACK, 1),
            _ => (ACK, 9),
        };
        let time = 1_u32.to_be_bytes();
        let more: [(u8, &[u8]); 3] = [
            (1, &[255, 255, 255, 0]),
            (3, &[10, 6, 0, gateway]),
            (51, &time),
        ];
        vec![query.answer(kind, FIRST, &more)]
    });
    let _daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    network.add(&a);
    assert!(
        eventually(|| a.default_gateways() == ["10.6.0.9"]),
        "{:?}",
        a.routes()
    );
    assert_eq!(a.addresses("eth0"), ["10.6.0.50/24"]);
}

/// The kernel refuses a route by a router that is on no link.
#[test]
fn lease_is_kept_without_a_refused_route() {
    let host = Host::new();
    let network = network(&host);
    let server = Server::start(|query| {
        let [time, renewal, rebinding] = [4_u32, 1, 3].map(u32::to_be_bytes);
        let (kind, router) = match (query.kind, query.client.is_unspecified()) {
            (DISCOVER, _) => (OFFER, [10, 6, 0, 1]),
            (REQUEST, true) => (ACK, [10, 6, 0, 1]),
            _ => (ACK, [192, 0, 2, 1]),
        };
        let network: [(u8, &[u8]); 2] = [(1, &[255, 255, 255, 0]), (3, &router)];
        let times: [(u8, &[u8]); 3] = [(51, &time), (58, &renewal), (59, &rebinding)];
        vec![query.answer(kind, FIRST, &[&network[..], &times].concat())]
    });
    let daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    network.add(&a);
    daemon.says("change routes: ");
    let renewals = || {
        let requests = server.seen_of(REQUEST);
        requests
            .iter()
            .filter(|it| it.client.octets() == FIRST)
            .count()
    };
    assert!(eventually(|| renewals() > 5), "{}", daemon.log());
    assert!(!daemon.log().contains("is lost"), "{}", daemon.log());
    assert_eq!(a.addresses("eth0"), ["10.6.0.50/24"]);
}

#[test]
fn refused_renewal_moves_the_interface_to_a_new_address() {
    let host = Host::new();
    let network = network(&host);
    let (mut address, mut seconds) = (FIRST, 1);
    let server = Server::start(
        move |query| match (query.kind, query.client.is_unspecified()) {
            (DISCOVER, _) => vec![query.lease(OFFER, address, seconds)],
            (REQUEST, true) => vec![query.lease(ACK, address, seconds)],
            (REQUEST, false) => {
                (address, seconds) = (SECOND, 60);
                vec![query.answer(NAK, [0; 4], &[(56, b"moved\x1b[2J")])]
            }
            _ => Vec::new(),
        },
    );
    let daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    let result = network.add(&a);
    assert_eq!(result["ips"][0]["address"], "10.6.0.50/24");
    expect_address(&a, &daemon, &["10.6.0.51/24"]);
    assert!(eventually(|| a.default_gateways() == ["10.6.0.1"]));
    assert!(a.pings("10.6.0.1"));
    assert!(!daemon.log().contains('\x1b'), "{}", daemon.log());
    let ipam = network.clone().with("type", "dhcp");
    let refusal = ipam.check(&a, &result).error();
    refusal.expect(100, &["10.6.0.51/24", "prevResult"]);
    network.del(&a);
    let release = server.sees(|it| it.kind == tests::dhcp::RELEASE);
    assert_eq!(release.client.octets(), SECOND);
}

#[test]
fn expired_lease_leaves_the_interface_and_a_later_one_returns() {
    let host = Host::new();
    let network = network(&host);
    let server = Server::leasing(&[FIRST], 1);
    let daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    network.add(&a);
    drop(server);
    expect_address(&a, &daemon, &[]);
    assert!(a.default_gateways().is_empty());
    assert_eq!(
        records().len(),
        1,
        "the container lives, so the daemon goes on"
    );
    let server = Server::leasing(&[SECOND], 60);
    expect_address(&a, &daemon, &["10.6.0.51/24"]);
    let asked = server.seen_of(DISCOVER)[0].wanted();
    assert_eq!(
        asked.octets(),
        FIRST,
        "the client asks for the expired address"
    );
    assert!(eventually(|| a.default_gateways() == ["10.6.0.1"]));
    assert!(a.pings("10.6.0.1"));
}

/// Until the lease ends, the daemon waits for the answer of any server, and then for nothing else.
#[test]
fn expired_lease_leaves_the_interface_at_once_with_the_default_times() {
    let host = Host::new();
    let network = network(&host);
    let server = Server::start(|query| {
        let kind = if query.kind == DISCOVER { OFFER } else { ACK };
        let [time, early] = [4_u32, 1].map(u32::to_be_bytes);
        let mask: (u8, &[u8]) = (1, &[255, 255, 255, 0]);
        let times: [(u8, &[u8]); 3] = [(51, &time), (58, &early), (59, &early)];
        vec![query.answer(kind, FIRST, &[&[mask], &times[..]].concat())]
    });
    let run = host.plugin("dhcp").argument("daemon");
    let daemon = Daemon::spawn(&host, &run.argument("-socketpath").argument(SOCKET));
    daemon.says("listening");
    let a = host.sandbox("a");
    network.add(&a);
    drop(server);
    expect_address(&a, &daemon, &[]);
    daemon.says("it has expired");
}
