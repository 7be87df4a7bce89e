//! `dhcp` in a network with foreign packets, and with many clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd as _;
use std::thread;

use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::BindToDevice;
use tests::dhcp::{ACK, DISCOVER, Daemon, OFFER, REQUEST, Server, network};
use tests::{Host, Place as _, Sandbox, at_once, eventually};

const ADDRESS: [u8; 4] = [10, 6, 0, 50];

/// Another machine in the network of `cni0`.
struct Neighbour(UdpSocket);

impl Neighbour {
    fn new() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        setsockopt(&socket.as_fd(), BindToDevice, &"cni0".into()).unwrap();
        socket.set_broadcast(true).unwrap();
        Self(socket)
    }

    /// Sends to port 68 of all machines.
    fn send(&self, message: &[u8]) {
        self.0.send_to(message, (Ipv4Addr::BROADCAST, 68)).unwrap();
    }

    /// Sends what the receiver of `offer` must not take for it: questions, answers to another client, and
    /// fragments.
    fn flood(&self, offer: &[u8]) {
        let [mut question, mut other, mut fragments] = [(); 3].map(|()| offer.to_owned());
        question[0] = 1;
        other[7] ^= 1;
        fragments.resize(3000, 0);
        for _ in 0..2000 {
            for message in [&question, &other, &fragments] {
                self.send(message);
            }
        }
    }
}

/// Returns the size of the packets that the kernel keeps for the packet sockets of a sandbox.
fn queued(a: &Sandbox) -> u64 {
    let sockets = a.run("cat", &["/proc/net/packet"]);
    let sizes = sockets.lines().skip(1);
    let sizes = sizes.map(|it| it.split_whitespace().nth(6).unwrap());
    sizes.map(|it| it.parse::<u64>().unwrap()).sum()
}

/// While the daemon is stopped, the kernel keeps for it what it would receive.
#[test]
fn foreign_packets_do_not_reach_the_daemon() {
    let host = Host::new();
    let network = network(&host);
    let server = Server::start(|query| match query.kind {
        REQUEST => vec![query.lease(ACK, ADDRESS, 60)],
        _ => Vec::new(),
    });
    let daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    let neighbour = &Neighbour::new();
    let added = thread::scope(|scope| {
        let add = scope.spawn(|| network.add(&a));
        let query = server.sees(|it| it.kind == DISCOVER);
        daemon.signal(Signal::SIGSTOP);
        let stat = format!("/proc/{}/stat", daemon.pid());
        let is_stopped = || fs::read_to_string(&stat).unwrap().contains(") T ");
        assert!(eventually(is_stopped));

        let offer = query.lease(OFFER, ADDRESS, 60);
        neighbour.send(&offer);
        assert!(eventually(|| queued(&a) > 0));
        let one = queued(&a);
        neighbour.flood(&offer);
        neighbour.send(&offer);
        assert!(eventually(|| queued(&a) > one));
        assert_eq!(queued(&a), 2 * one);

        scope.spawn(move || neighbour.flood(&offer));
        daemon.signal(Signal::SIGCONT);
        add.join().unwrap()
    });
    assert_eq!(added["ips"][0]["address"], "10.6.0.50/24");
}

/// The server is silent until it knows all clients. Meanwhile, a client beyond the first 32 asks only
/// after another one had to repeat its question.
#[test]
fn some_of_many_clients_wait_for_their_turn() {
    let host = Host::new();
    let network = network(&host).with("type", "dhcp");
    let a = host.sandbox("a");
    let numbers: Vec<_> = (0..40).collect();
    for number in &numbers {
        let pair = format!("port{number} type veth peer name eth{number} netns a");
        host.ip(&format!("link add {pair}"));
        host.ip(&format!("link set port{number} master cni0 up"));
        a.ip(&format!("link set eth{number} up"));
    }
    let mut known = BTreeSet::new();
    let server = Server::start(move |query| {
        known.insert(query.text(61));
        match query.kind {
            _ if known.len() < 40 => Vec::new(),
            DISCOVER => vec![query.lease(OFFER, ADDRESS, 60)],
            REQUEST => vec![query.lease(ACK, ADDRESS, 60)],
            _ => Vec::new(),
        }
    });
    let _daemon = Daemon::start(&host);
    at_once(&numbers, |number| {
        let interface = format!("eth{number}");
        network.on("ADD", &a).ifname(&interface).ok()
    });
    let mut asked = BTreeMap::new();
    for query in server.seen_of(DISCOVER) {
        *asked.entry(query.text(61)).or_insert(0) += 1;
        let repeating = asked.values().filter(|it| **it > 1).count();
        assert!(asked.len() <= 32 + repeating, "{asked:?}");
    }
}
