//! cnitool reload: effects on traffic during a flush of the rules.

use std::net::UdpSocket;
use std::time::Duration;

use tests::traffic::Connection;
use tests::{Host, Place as _, Sandbox, eventually};

const PORTS: [&str; 2] = ["8080:80", "8053:53/udp"];

/// The kernel keeps its tracked connections, but translates nothing without NAT chains. So the host
/// itself receives packets for the port and resets the connection.
#[test]
fn a_connection_to_a_port_outlives_the_flush_if_nothing_is_sent_meanwhile() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    let to_port = || Connection::open(&outside, "192.0.2.1:8080", (&a, 80));
    let [mut silent, mut talking] = [to_port(), to_port()];
    let away = || Connection::open(&a, "192.0.2.2:9000", (&outside, 9000));
    let [mut away, mut answered] = [away(), away().turned()];
    host.run("nft", &["flush", "ruleset"]);
    assert!(!talking.carries() && !away.carries() && !answered.carries());
    tool.run(&["reload"]).ok();
    assert!(silent.carries());
    assert!(!talking.carries() && !answered.carries());
    // The sender repeats lost data after increasing pauses.
    assert!(eventually(|| away.carries()));
}

/// While a sender continues, the kernel applies its decision about the first packet.
#[test]
fn datagrams_sent_meanwhile_reach_the_pod_again() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    host.run("nft", &["flush", "ruleset"]);
    let tracking = "table ip other { chain c { type filter hook forward priority 0; ct state new; }; chain d { type filter hook input priority 0; ct state new; }; }";
    host.run("nft", &[&format!("add {tracking}")]);
    answer(&a, 53);
    answer(&outside, 5000);
    let senders = [(&a, "192.0.2.2:5000"), (&outside, "192.0.2.1:8053")];
    let sockets = senders.map(|(from, to)| {
        let socket = from.enter(|| UdpSocket::bind("0.0.0.0:4000").unwrap());
        socket.connect(to).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        socket
    });
    assert_eq!(sockets.each_ref().map(is_answered), [false; 2]);
    tool.run(&["reload"]).ok();
    assert_eq!(sockets.each_ref().map(is_answered), [true; 2]);
}

/// Sends every datagram back while the test runs.
fn answer(place: &Sandbox, port: u16) {
    let socket = place.enter(|| UdpSocket::bind(("0.0.0.0", port)).unwrap());
    std::thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            // Some senders cannot be answered.
            socket.send_to(b"pong", from).ok();
        }
    });
}

fn is_answered(socket: &UdpSocket) -> bool {
    let answered = || {
        socket.send(b"ping")?;
        socket.recv(&mut [0; 16])
    };
    // An error of the previous datagram may be reported first.
    answered().or_else(|_| answered()).is_ok()
}
