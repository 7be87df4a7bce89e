//! `dhcp daemon` is killed at any point of an ADD: no address is lost, none is held twice, and DEL
//! releases all.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;

use tests::dhcp::{Daemon, Query, RELEASE, REQUEST, SOCKET, Server, records};
use tests::{Host, Place as _, at_once, eventually};

/// Calls of the daemon at which it is killed, and how often each is tried: sent and received frames,
/// netlink messages, records and answers.
const CALLS: [(&str, u32); 4] = [("rename", 3), ("sendto", 8), ("write", 4), ("openat", 6)];

/// Kills the daemon at the call `number` of `name` after it starts, and checks what the next daemon
/// does.
fn kill_at((name, number): &(&str, u32)) {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = tests::dhcp::network(&host).with("type", "dhcp");
    host.ip("link add port type veth peer name eth0 netns a");
    host.ip("link set port master cni0 up");
    a.ip("link set eth0 up");
    let server = Server::leasing(&[[10, 6, 0, 50]], 60);
    // The first daemon creates the directory, so the second one makes the same calls each time.
    Daemon::start(&host).end();
    let strace = "strace -f -qq -o /dev/null -e";
    let words = format!("{strace} trace={name} -e inject={name}:signal=KILL:when={number}+");
    let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
    let daemon = Daemon::spawn(&host, &Daemon::run(&host).under(&words));
    let exists = || fs::exists(SOCKET).unwrap() || !daemon.is_running();
    assert!(eventually(exists));
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
