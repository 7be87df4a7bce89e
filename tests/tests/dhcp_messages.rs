//! What `dhcp` sends to a server, and how it takes the answers.

use std::fs;

use serde_json::json;
use tests::dhcp::{ACK, DISCOVER, Daemon, OFFER, RELEASE, REQUEST, Server, network, records};
use tests::{Host, Place as _};

const ADDRESS: [u8; 4] = [10, 6, 0, 50];

#[test]
fn messages_name_the_client_and_its_options() {
    let host = Host::new();
    let network = network(&host);
    let server = Server::leasing(&[ADDRESS], 60);
    let _daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    let provide = json!([
        {"option": "host-name", "value": "unnamed", "fromArg": "K8S_POD_NAME"},
        {"option": "60", "value": "cni"},
        {"option": "user-class", "value": ""},
    ]);
    let request = json!([{"option": "121"}, {"option": "vendor-class-identifier"}]);
    let network = network
        .with("ipam.provide", provide)
        .with("ipam.request", request);
    network
        .on("ADD", &a)
        .args("IgnoreUnknown=1;K8S_POD_NAME=pod-1")
        .ok();
    network.del(&a);
    let release = server.sees(|it| it.kind == RELEASE);
    assert_eq!(release.from.ip().octets(), ADDRESS);
    assert_eq!(release.client.octets(), ADDRESS);
    assert_eq!(release.options[&54], [10, 6, 0, 1]);
    let mut seen = server.seen();
    // A busy server receives repeated messages.
    seen.dedup_by_key(|it| it.kind);
    assert_eq!(
        seen.iter().map(|it| it.kind).collect::<Vec<_>>(),
        [DISCOVER, REQUEST, RELEASE]
    );
    for query in &seen {
        assert_eq!(query.text(61), "\0a/pods/eth0");
        assert_eq!(query.text(12), "pod-1");
        assert_eq!(query.text(60), "cni");
        assert!(!query.options.contains_key(&77) && !query.broadcast);
    }
    assert_eq!(seen[0].options[&55], [121, 60, 3, 1]);
    assert_eq!(seen[1].options[&50], ADDRESS);
    assert_eq!(seen[1].options[&54], [10, 6, 0, 1]);
}

#[test]
fn defaults_can_be_skipped_and_broadcasts_asked_for() {
    let host = Host::new();
    let network = network(&host).with("ipam.request", json!([{"skipDefault": true}]));
    let server = Server::leasing(&[ADDRESS], 60);
    let daemon = Daemon::spawn(&host, &Daemon::run(&host).argument("-broadcast"));
    daemon.says("listening");
    network.add(&host.sandbox("a"));
    for query in server.seen() {
        assert!(!query.options.contains_key(&55) && query.broadcast);
    }
}

#[test]
fn client_identifier_is_cut_at_254_bytes_and_can_be_replaced() {
    let host = Host::new();
    let network = network(&host).with("name", "n".repeat(300));
    let server = Server::leasing(&[ADDRESS], 60);
    let _daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    network.add(&a);
    let id = &server.seen()[0].options[&61];
    assert_eq!(id.len(), 255);
    assert!(id.starts_with(b"\0a/nnn"));
    let own = json!([{"option": "dhcp-client-identifier", "value": "mine"}]);
    let b = host.sandbox("b");
    let network = network.with("ipam.provide", own);
    network.add(&b);
    network.del(&b);
    let of_b = server.sees(|it| it.kind == RELEASE);
    assert_eq!(of_b.text(61), "mine");
}

#[test]
fn classless_routes_replace_the_default_route() {
    let host = Host::new();
    let network = network(&host).with("ipam.priority", 77);
    // 192.0.2.0/25 by 10.6.0.9, and 198.51.100.7/32 on the link.
    let routes = [
        25, 192, 0, 2, 0, 10, 6, 0, 9, 32, 198, 51, 100, 7, 0, 0, 0, 0,
    ];
    let _server = Server::start(move |query| {
        let more: [(u8, &[u8]); 4] = [
            (1, &[255, 255, 255, 0]),
            (3, &[10, 6, 0, 1]),
            (33, &[172, 16, 0, 0, 10, 6, 0, 8]),
            (121, &routes),
        ];
        let kind = if query.kind == DISCOVER { OFFER } else { ACK };
        vec![query.answer(kind, ADDRESS, &more)]
    });
    let _daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    let result = network.with("cniVersion", "1.1.0").add(&a);
    let expected = json!([
        {"dst": "192.0.2.0/25", "gw": "10.6.0.9", "priority": 77},
        {"dst": "198.51.100.7/32", "scope": 253, "priority": 77},
    ]);
    assert_eq!(result["routes"], expected);
    assert_eq!(result["ips"][0]["gateway"], "10.6.0.1");
    assert!(a.default_gateways().is_empty());
    let shown = a.ip("route show");
    assert!(
        shown.contains("192.0.2.0/25 via 10.6.0.9 dev eth0 metric 77"),
        "{shown}"
    );
    assert!(
        shown.contains("198.51.100.7 dev eth0 scope link metric 77"),
        "{shown}"
    );
}

#[test]
fn static_routes_precede_the_default_route() {
    let host = Host::new();
    let network = network(&host);
    let _server = Server::start(move |query| {
        let more: [(u8, &[u8]); 3] = [
            (1, &[255, 255, 255, 0]),
            (3, &[10, 6, 0, 1, 10, 6, 0, 2]),
            (33, &[172, 16, 0, 0, 10, 6, 0, 8]),
        ];
        let kind = if query.kind == DISCOVER { OFFER } else { ACK };
        vec![query.answer(kind, ADDRESS, &more)]
    });
    let _daemon = Daemon::start(&host);
    let result = network.add(&host.sandbox("a"));
    let expected = json!([
        {"dst": "172.16.0.0/16", "gw": "10.6.0.8"},
        {"dst": "0.0.0.0/0", "gw": "10.6.0.1"},
    ]);
    assert_eq!(result["routes"], expected);
}

#[test]
fn garbage_and_useless_answers_are_ignored() {
    let host = Host::new();
    let network = network(&host);
    let _server = Server::start(|query| {
        let kind = if query.kind == DISCOVER { OFFER } else { ACK };
        let mut stranger = query.lease(kind, [10, 6, 0, 66], 60);
        stranger[4] ^= 1;
        let mut huge = query.answer(kind, ADDRESS, &[(1, &[255; 3])]);
        huge.resize(1400, 12);
        vec![
            vec![0; 3],
            vec![255; 600],
            query.lease(kind, ADDRESS, 60)[..250].to_vec(),
            stranger,
            huge,
            query.answer(kind, ADDRESS, &[]),
            query.answer(kind, [0; 4], &[(1, &[255, 255, 255, 0])]),
            query.answer(kind, ADDRESS, &[(1, &[255, 0, 255, 0])]),
            query.lease(kind, ADDRESS, 60),
        ]
    });
    let daemon = Daemon::start(&host);
    let result = network.add(&host.sandbox("a"));
    assert_eq!(result["ips"][0]["address"], "10.6.0.50/24");
    daemon.says("no subnet mask");
}

#[test]
fn sandbox_with_too_many_addresses_gets_no_lease() {
    let host = Host::new();
    let network = network(&host);
    let _daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    let numbers = 0..=10_000;
    let lines =
        numbers.map(|it| format!("address add 127.1.{}.{}/32 dev lo\n", it / 250, it % 250));
    let file = host.dir().join("addresses");
    fs::write(&file, lines.collect::<String>()).unwrap();
    a.ip(&format!("-batch {}", file.display()));
    let refusal = network.on("ADD", &a).error();
    refusal.expect(100, &["the list is too long"]);
}

#[test]
fn first_of_two_offers_is_requested() {
    let host = Host::new();
    let network = network(&host);
    let server = Server::start(|query| match query.kind {
        DISCOVER => vec![
            query.lease(OFFER, ADDRESS, 60),
            query.lease(OFFER, [10, 6, 0, 51], 60),
        ],
        REQUEST => {
            let ack = query.lease(ACK, query.wanted().octets(), 60);
            vec![ack.clone(), ack]
        }
        _ => Vec::new(),
    });
    let _daemon = Daemon::start(&host);
    let result = network.add(&host.sandbox("a"));
    assert_eq!(result["ips"][0]["address"], "10.6.0.50/24");
    for request in server.seen_of(REQUEST) {
        assert_eq!(request.wanted().octets(), ADDRESS);
    }
}

#[test]
fn refused_request_is_followed_by_another_one() {
    let host = Host::new();
    let network = network(&host);
    let mut refused = false;
    let server = Server::start(move |query| match query.kind {
        DISCOVER => vec![query.lease(OFFER, ADDRESS, 60)],
        _ if !std::mem::replace(&mut refused, true) => vec![query.refuse()],
        _ => vec![query.lease(ACK, ADDRESS, 60)],
    });
    let daemon = Daemon::start(&host);
    network.add(&host.sandbox("a"));
    daemon.says("refuses 10.6.0.50/24: not yours");
    assert!(server.seen_of(DISCOVER).len() > 1);
}

#[test]
fn silent_server_makes_add_fail_and_nothing_stays() {
    let host = Host::new();
    let network = network(&host);
    let server = Server::start(|_| Vec::new());
    let _daemon = Daemon::impatient(&host);
    let a = host.sandbox("a");
    network
        .on("ADD", &a)
        .error()
        .expect(100, &["no DHCP server answers DHCPDISCOVER"]);
    assert_eq!(host.links(), ["cni0", "lo"]);
    assert!(records().is_empty());
    assert!(
        server.seen_of(DISCOVER).len() > 2,
        "the question is repeated"
    );
}

#[test]
fn lost_acknowledgement_makes_add_fail_and_the_address_is_released() {
    let host = Host::new();
    let network = network(&host);
    let server = Server::start(|query| match query.kind {
        DISCOVER => vec![query.lease(OFFER, ADDRESS, 60)],
        _ => Vec::new(),
    });
    let _daemon = Daemon::impatient(&host);
    network.on("ADD", &host.sandbox("a")).error();
    server.sees(|it| it.kind == RELEASE && it.client.octets() == ADDRESS);
    assert!(records().is_empty());
}

#[test]
fn invalid_options_are_refused() {
    let host = Host::new();
    let network = network(&host).with("type", "dhcp");
    let a = host.sandbox("a");
    for (key, value, code) in [
        ("ipam.request", json!([{"option": "no-such"}]), 2),
        ("ipam.request", json!([{"option": "0"}]), 2),
        ("ipam.provide", json!([{"option": "256", "value": "x"}]), 2),
        (
            "ipam.provide",
            json!([{"option": "12", "value": "x".repeat(256)}]),
            7,
        ),
        ("ipam.priority", json!(-1), 7),
        ("ipam.daemonSocketPath", json!("dhcp.sock"), 7),
    ] {
        let refusal = network.clone().with(key, value).on("ADD", &a).error();
        refusal.expect(code, &[key]);
    }
}
