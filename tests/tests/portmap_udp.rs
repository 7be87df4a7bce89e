//! portmap: datagrams of senders that started before a port was forwarded or continue after its
//! removal.

use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use tests::traffic::{Connection, udp_by_port};
use tests::{Host, Place as _, Sandbox};

/// A sender that keeps its socket, and so its tracked connection.
struct Sender(UdpSocket);

impl Sender {
    fn new(place: &Sandbox, target: &str) -> Self {
        let socket = place.enter(|| UdpSocket::bind("192.0.2.2:4000").unwrap());
        socket
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        place.enter(|| socket.connect(target)).unwrap();
        Self(socket)
    }

    /// Sends a datagram and returns its answer.
    fn asks(&self) -> io::Result<String> {
        self.0.send(b"who?")?;
        let mut buffer = [0; 16];
        // An error of the previous datagram may be reported first.
        let len = self.0.recv(&mut buffer).or_else(|_| {
            self.0.send(b"who?")?;
            self.0.recv(&mut buffer)
        })?;
        Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
    }
}

/// Answers every datagram with the server's name while the test runs.
fn serve(place: &impl tests::Place, name: &'static str, port: u16) {
    let socket = place.enter(|| UdpSocket::bind(("0.0.0.0", port)).unwrap());
    std::thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(name.as_bytes(), from).unwrap();
        }
    });
}

#[test]
fn earlier_senders_to_the_host_reach_the_pod_and_after_del_the_host() {
    for mapping in ["8053:53/udp", "192.0.2.1:8053:53/udp"] {
        let host = Host::new();
        let outside = host.outside();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let ports = host.ports();
        // The kernel tracks connections from the first port on.
        ports.add(&b, &["9090:90"]);
        serve(&host, "host", 8053);
        let sender = Sender::new(&outside, "192.0.2.1:8053");
        assert_eq!(sender.asks().unwrap(), "host");
        let portmap = ports.attach(&a, &[mapping]);
        serve(&a, "pod", 53);
        portmap.add(&a);
        assert_eq!(sender.asks().unwrap(), "pod");
        ports.forgotten(&a).ok();
        assert_eq!(sender.asks().unwrap(), "host");
    }
}

#[test]
fn gc_ends_what_senders_began() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let ports = host.ports();
    ports.add(&a, &["8053:53/udp"]);
    serve(&host, "host", 8053);
    serve(&a, "pod", 53);
    let sender = Sender::new(&outside, "192.0.2.1:8053");
    assert_eq!(sender.asks().unwrap(), "pod");
    ports.portmap().gc(&[]).ok();
    assert_eq!(sender.asks().unwrap(), "host");
}

#[test]
fn senders_follow_a_port_that_is_taken_over() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    ports.add(&a, &["8053:53/udp"]);
    serve(&a, "a", 53);
    let sender = Sender::new(&outside, "192.0.2.1:8053");
    assert_eq!(sender.asks().unwrap(), "a");
    a.ip("link delete eth0");
    let portmap = ports.attach(&b, &["8053:53/udp"]);
    serve(&b, "b", 53);
    portmap.add(&b);
    assert_eq!(sender.asks().unwrap(), "b");
}

/// The plugin lists the connections if there are many ports.
#[test]
fn senders_to_other_ports_and_addresses_are_left_alone() {
    for more in [0, 100] {
        let host = Host::new();
        let outside = host.outside();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let ports = host.ports();
        let with_more = |mappings: &[&str], from: u16| {
            let more = (from..from + more).map(|it| format!("{it}:53/udp"));
            let mappings = mappings.iter().map(|it| (*it).to_owned());
            mappings.chain(more).collect::<Vec<_>>()
        };
        let add = |pod, mappings: Vec<String>| {
            let mappings: Vec<_> = mappings.iter().map(String::as_str).collect();
            ports.add(pod, &mappings);
        };
        let of_a = ["8053:53/udp", "192.0.2.1:8054:53/udp"];
        add(&a, with_more(&of_a, 20_000));
        serve(&a, "pod", 53);
        let sender = Sender::new(&outside, "192.0.2.1:8053");
        assert_eq!(sender.asks().unwrap(), "pod");
        let tracked = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
        let of_b = ["127.0.0.1:8055:53/udp", "8053:53", "192.0.2.1:8056:53/udp"];
        add(&b, with_more(&of_b, 30_000));
        assert!(tracked().contains("dport=8053"), "{}", tracked());
        ports.forgotten(&b).ok();
        assert!(tracked().contains("dport=8053"), "{}", tracked());
        ports.forgotten(&a).ok();
        assert!(!tracked().contains("dport=8053"), "{}", tracked());
    }
}

/// A client of a name server elsewhere must not reach a pod that serves names here.
#[test]
fn connections_to_other_hosts_by_the_same_port_stay() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let ports = host.ports();
    ports.add(&a, &["8053:53/udp", "8053:53"]);
    let elsewhere = "192.0.2.2:8053";
    assert!(udp_by_port(&host, elsewhere, (&outside, 8053)).is_some());
    let mut stream = Connection::open(&host, elsewhere, (&outside, 8053));
    let tracked = || {
        let table = std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
        let lines = table.lines();
        let there = lines.filter(|it| it.contains("dst=192.0.2.2") && it.contains("dport=8053"));
        there.count()
    };
    assert_eq!(tracked(), 2);
    host.end(&a);
    // The new holder takes both over.
    ports.add(&b, &["8053:53/udp", "8053:53"]);
    assert_eq!(tracked(), 2);
    ports.forgotten(&b).ok();
    assert_eq!(tracked(), 2);
    ports.add(&c, &["8053:53/udp"]);
    ports.portmap().gc(&[]).ok();
    assert_eq!(tracked(), 2);
    assert!(stream.carries());
}
