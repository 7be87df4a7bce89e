//! A slow stream of datagrams, to count what is lost.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::place::Place as _;
use crate::{Sandbox, traffic};

/// Packets of a sender, of its receiver, and packets that no socket had room for.
#[derive(Debug, Default)]
pub struct Counts {
    /// Packets that the sender sent.
    pub sent: u64,
    /// Packets that the receiver read.
    pub received: u64,
    /// Packets that no socket had room for.
    pub without_room: u64,
}

/// Sends datagrams with sequence numbers at 4 Mbit/s while `change` runs.
///
/// # Panics
/// More than one datagram of a hundred is overtaken by its successor. A few may be, in a slow
/// machine: each processor has a queue for what it sends over a veth pair.
pub fn stream(
    client: &Sandbox,
    (server, address): (&Sandbox, &str),
    change: impl FnOnce(),
) -> Counts {
    let there = server.enter(|| UdpSocket::bind((address, 0)).unwrap());
    let here = client.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    here.connect(there.local_addr().unwrap()).unwrap();
    let sending = AtomicBool::new(true);
    let (sent, numbers) = thread::scope(|scope| {
        let sent = scope.spawn(|| send(&here, &sending));
        let numbers = scope.spawn(|| receive(&there, &sending));
        change();
        sending.store(false, Ordering::Relaxed);
        (sent.join().unwrap(), numbers.join().unwrap())
    });
    let swapped = numbers.windows(2).filter(|it| it[0] > it[1]).count();
    assert!(swapped * 100 <= numbers.len(), "{swapped} are out of order");
    Counts {
        sent,
        received: numbers.len() as u64,
        without_room: receive_errors(server),
    }
}

/// Returns the number of datagrams.
fn send(socket: &UdpSocket, sending: &AtomicBool) -> u64 {
    let mut number = 0_u64;
    let mut packet = [0; 1200];
    while sending.load(Ordering::Relaxed) {
        packet[..8].copy_from_slice(&number.to_be_bytes());
        socket.send(&packet).unwrap();
        number += 1;
        traffic::wait_until(Instant::now() + Duration::from_micros(2400));
    }
    number
}

/// Returns the numbers of the datagrams that arrive.
fn receive(socket: &UdpSocket, sending: &AtomicBool) -> Vec<u64> {
    let patience = Some(Duration::from_millis(500));
    socket.set_read_timeout(patience).unwrap();
    let mut packet = [0; 1200];
    let mut numbers = Vec::new();
    loop {
        match socket.recv(&mut packet) {
            Ok(_) => numbers.push(u64::from_be_bytes(*packet.first_chunk().unwrap())),
            Err(_) if sending.load(Ordering::Relaxed) => {}
            Err(_) => return numbers,
        }
    }
}

/// Returns the datagrams that no socket of a namespace had room for.
fn receive_errors(place: &Sandbox) -> u64 {
    let text = place.enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut lines = text.lines().filter(|line| line.starts_with("Udp: "));
    let [names, values] = [(); 2].map(|()| lines.next().unwrap().split(' '));
    let mut pairs = names.zip(values);
    let (_, value) = pairs.find(|(name, _)| *name == "RcvbufErrors").unwrap();
    value.parse().unwrap()
}
