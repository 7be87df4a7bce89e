//! Neighbours that send packets to and from 127.0.0.0/8 to the host (CVE-2020-8558).

use std::net::UdpSocket;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::place::Place;
use crate::{Host, Sandbox};

/// Sockets of a neighbour on a link of the host, and of a server on the host.
#[derive(Debug)]
pub struct Intruder {
    /// Sends from an address of the link.
    open: UdpSocket,
    /// Sends from 127.0.0.9. The kernel drops packets from 127.0.0.1, an address of the host.
    disguised: UdpSocket,
    server: UdpSocket,
    /// The host's address on the link.
    host: String,
    number: AtomicU32,
}

impl Intruder {
    /// Makes `neighbour` send packets for 127.0.0.0/8 to the host, as its root can. `address` is the
    /// host's on their link.
    pub fn new(neighbour: &Sandbox, host: &Host, address: &str) -> Self {
        turn(neighbour, address);
        neighbour.ip("address add 127.0.0.9/32 dev eth0");
        let bind = |place: &str| neighbour.enter(|| UdpSocket::bind(place).unwrap());
        let server = host.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        let patience = Some(Duration::from_secs(10));
        server.set_read_timeout(patience).unwrap();
        Self {
            open: bind("0.0.0.0:0"),
            disguised: bind("127.0.0.9:0"),
            server,
            host: address.to_owned(),
            number: AtomicU32::new(0),
        }
    }

    /// Returns whether packets to 127.0.0.1 reach the server, and whether packets from 127.0.0.0/8
    /// do. A packet that may arrive follows them, so this function waits for nothing else.
    #[track_caller]
    pub fn arrives(&self) -> [bool; 2] {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let [to, from, end] = ["to", "from", "end"].map(|word| format!("{word} {number}"));
        let port = self.server.local_addr().unwrap().port();
        let send = |socket: &UdpSocket, address: &str, text: &str| {
            socket.send_to(text.as_bytes(), (address, port)).unwrap();
        };
        // The first packet of a neighbour to the host's address makes it ask for the host's MAC.
        send(&self.open, &self.host, "");
        for _ in 0..2 {
            send(&self.open, "127.0.0.1", &to);
            send(&self.disguised, &self.host, &from);
        }
        send(&self.open, &self.host, &end);
        let mut arrived = [false; 2];
        let mut buffer = [0; 64];
        loop {
            let length = self.server.recv(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..length]);
            if text == end {
                return arrived;
            }
            arrived[0] |= text == to;
            arrived[1] |= text == from;
        }
    }
}

/// Makes the pod send packets for 127.0.0.0/8 to `gateway`, as its root can.
pub fn turn(pod: &Sandbox, gateway: &str) {
    pod.set_sysctl("net/ipv4/conf/all/route_localnet", "1");
    pod.ip(&format!("route add 127.0.0.0/8 via {gateway}"));
}
