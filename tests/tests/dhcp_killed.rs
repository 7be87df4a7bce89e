//! `dhcp daemon` is killed at any point of an ADD: no address is lost, none is held twice, and DEL
//! releases all.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;

use tests::dhcp::{
    ACK, DISCOVER, Daemon, OFFER, Query, RELEASE, REQUEST, SOCKET, Server, alone, records,
};
use tests::{Host, Place as _, at_once, eventually};

/// Calls of the daemon at which it is killed, and how often each is tried: sent and received frames,
/// netlink messages, records and answers.
const CALLS: [(&str, u32); 4] = [("rename", 3), ("sendto", 8), ("write", 4), ("openat", 6)];

/// Starts a daemon that is killed at the call `number` of `name`.
fn killed_at(host: &Host, name: &str, number: u32) -> Daemon {
    let strace = "strace -f -qq -o /dev/null -e";
    let words = format!("{strace} trace={name} -e inject={name}:signal=KILL:when={number}+");
    let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
    let daemon = Daemon::spawn(host, &Daemon::run(host).under(&words));
    let exists = || fs::exists(SOCKET).unwrap() || !daemon.is_running();
    assert!(eventually(exists));
    daemon
}

/// Kills the daemon at the call `number` of `name` after it starts, and checks what the next daemon
/// does.
fn kill_at((name, number): &(&str, u32)) {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = alone(&host, &a);
    let server = Server::leasing(&[[10, 6, 0, 50]], 60);
    // The first daemon creates the directory, so the second one makes the same calls each time.
    Daemon::start(&host).end();
    let daemon = killed_at(&host, name, *number);
    let added = network.on("ADD", &a).run();
    drop(daemon);
    let daemon = Daemon::start(&host);
    let case = format!("{name} {number}: {added:?} {}", daemon.log());
    if added.status.success() {
        assert_eq!(records().len(), 1, "{case}");
        network.check(&a, &added.ok()).ok();
    }
    network.del(&a);
    assert!(eventually(|| records().is_empty()), "{case}");
    expect_released(&server, &case);
}

/// Checks that the client has released all addresses that it has requested.
fn expect_released(server: &Server, case: &str) {
    let addresses = |kind: u8| -> BTreeSet<Ipv4Addr> {
        server.seen_of(kind).iter().map(Query::wanted).collect()
    };
    let all_released = || addresses(REQUEST).is_subset(&addresses(RELEASE));
    assert!(eventually(all_released), "{case}: {:?}", server.seen());
}

#[test]
fn no_address_is_lost_wherever_the_daemon_dies() {
    let cases: Vec<_> = CALLS
        .iter()
        .flat_map(|(name, count)| (1..=*count).map(move |number| (*name, number)))
        .collect();
    for some in cases.chunks(7) {
        at_once(some, kill_at);
    }
}

/// The daemon retires a record of another sandbox. It writes one when a server offers the lease, for
/// ADD, before the interface changes and afterwards.
#[test]
fn other_address_of_a_renewal_is_not_lost() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = alone(&host, &a);
    a.ip("address add 10.6.0.50/24 dev eth0");
    let mut renewals = 0..1;
    let server = Server::start(move |query| {
        let (kind, address, seconds) = match (query.kind, query.client.is_unspecified()) {
            (DISCOVER, _) => (OFFER, 50, 2),
            (REQUEST, true) => (ACK, 50, 2),
            (REQUEST, false) if renewals.next().is_some() => (ACK, 51, 60),
            _ => return Vec::new(),
        };
        vec![query.lease(kind, [10, 6, 0, address], seconds)]
    });
    let daemon = killed_at(&host, "rename", 5);
    network.add(&a);
    assert!(eventually(|| !daemon.is_running()));
    assert_eq!(a.addresses("eth0"), ["10.6.0.51/24"], "{}", daemon.log());
    let daemon = Daemon::start(&host);
    network.del(&a);
    assert!(a.addresses("eth0").is_empty(), "{}", daemon.log());
    server.sees(|it| it.kind == RELEASE && it.client.octets() == [10, 6, 0, 51]);
}
