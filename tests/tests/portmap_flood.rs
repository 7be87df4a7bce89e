//! portmap during a flood of tracked connections, which any client of the host can cause.

use std::net::{Ipv4Addr, UdpSocket};

use tests::faults::Trace;
use tests::{Host, Network, Place, Sandbox};

/// Sends a datagram from each of 20,000 ports of these addresses of `client` to the host's port
/// 8053.
fn flood(client: &Sandbox, addresses: std::ops::RangeInclusive<u8>) {
    for last in addresses.clone() {
        client.ip(&format!("address add 192.0.2.{last}/24 dev outside"));
    }
    client.enter(|| {
        for last in addresses {
            for port in 10_000..30_000 {
                let from = (Ipv4Addr::new(192, 0, 2, last), port);
                let socket = UdpSocket::bind(from).unwrap();
                socket.send_to(b"who?", "192.0.2.1:8053").unwrap();
            }
        }
    });
}

fn tracked(text: &str) -> usize {
    let table = std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
    table.lines().filter(|line| line.contains(text)).count()
}

/// Attaches a pod with a port, so the kernel tracks connections, and a second pod.
fn attach<'h>(host: &'h Host, mappings: &[&str]) -> (Sandbox, Sandbox, Network<'h>) {
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    ports.add(&b, &["9090:90"]);
    let portmap = ports.attach(&a, mappings);
    (outside, a, portmap)
}

#[test]
fn add_with_a_udp_port_does_not_list_each_connection() {
    let host = Host::new();
    let (outside, a, portmap) = attach(&host, &["8053:53/udp"]);
    let file = host.dir().join("calls");
    let received = |verb: &str| Trace::of(&portmap.on(verb, &a), &file).received();
    let among_none = [received("ADD"), received("DEL")];
    flood(&outside, 101..=101);
    assert!(tracked("dport=8053") > 10_000);
    let add = received("ADD");
    assert_eq!(tracked("dport=8053"), 0);
    let among_many = [add, received("DEL")];
    // The kernel needs at least 150 bytes to describe a connection.
    let growth = [0, 1].map(|it| among_many[it].saturating_sub(among_none[it]));
    assert!(
        growth.iter().all(|it| *it < 1000),
        "{among_none:?} {among_many:?}"
    );
}

/// Kernels before 6.11 do not delete by a filter.
#[test]
fn where_connections_are_listed_memory_does_not_grow_with_them() {
    let host = Host::new();
    let (outside, a, portmap) = attach(&host, &["8053:53/udp"]);
    // The kernel cannot filter by so many addresses.
    host.ip("route add local 198.51.100.0/24 dev lo");
    flood(&outside, 101..=102);
    assert!(tracked("dport=8053") > 30_000);
    let limited = ["prlimit", "--data=20000000"].map(str::to_owned);
    portmap.on("ADD", &a).under(&limited).ok();
    assert_eq!(tracked("dport=8053"), 0);
}

#[test]
fn connections_to_each_address_of_the_host_are_forgotten_and_no_others() {
    for prefix in [false, true] {
        let host = Host::new();
        let (outside, a, portmap) = attach(&host, &["8053:53/udp"]);
        for network in ["10.1.0.0/24", "198.51.100.0/24"] {
            outside.ip(&format!("route add {network} via 192.0.2.1"));
        }
        if prefix {
            host.ip("route add local 198.51.100.0/24 dev lo");
        }
        for address in ["127.0.0.1", "192.0.2.2"] {
            send(&host, address);
        }
        for address in ["192.0.2.1", "10.1.0.1", "198.51.100.7"] {
            send(&outside, address);
        }
        assert_eq!(tracked("dport=8053"), if prefix { 5 } else { 4 });
        portmap.add(&a);
        assert_eq!(tracked("dport=8053"), 1);
        assert_eq!(tracked("dst=192.0.2.2 sport"), 1);
    }
}

fn send(from: &impl Place, address: &str) {
    let socket = from.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    socket.send_to(b"who?", (address, 8053)).unwrap();
}
