//! The traffic: what a single thread sends from one namespace and receives in another.
//!
//! The kernel delivers a packet over veth links before `send` returns. So one thread can play both
//! ends, and what it measures is the path itself: no other processor, no wake-up, no scheduling. A
//! slot consists of many short batches, and the median batch counts, so an interruption of the
//! thread does not.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::{Place as _, Sandbox};

/// Two ends, and the address by which the client reaches the server.
#[derive(Debug)]
pub struct Line<'n> {
    /// The end that connects.
    pub client: &'n Sandbox,
    /// The end that listens.
    pub server: &'n Sandbox,
    /// Address and port of the server, as the client reaches it.
    pub target: SocketAddr,
}

/// Port of the server in its own namespace.
pub const SERVER_PORT: u16 = 80;

/// A kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Bits per second of one connection.
    TcpThroughput,
    /// Connections that are opened, accepted and closed, one after the other.
    TcpConnections,
    /// Time of a request and its answer of one byte, over one connection.
    TcpAnswer,
    /// The same over UDP between two bound sockets.
    UdpAnswer,
    /// The same over UDP from a new socket each time.
    UdpFirstAnswer,
    /// Datagrams in frames of 64 bytes.
    Packets,
}

/// A number that a metric measures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantity {
    /// Words for the table.
    pub name: &'static str,
    /// Unit of the value.
    pub unit: &'static str,
    /// Whether a larger value is better.
    pub more_is_better: bool,
}

impl Metric {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::TcpThroughput,
        Self::TcpConnections,
        Self::TcpAnswer,
        Self::UdpAnswer,
        Self::UdpFirstAnswer,
        Self::Packets,
    ];

    /// Returns what `measure` returns, in that order.
    pub fn quantities(self) -> Vec<Quantity> {
        let rate = |name, unit| Quantity {
            name,
            unit,
            more_is_better: true,
        };
        let time = |name| Quantity {
            name,
            unit: "µs",
            more_is_better: false,
        };
        match self {
            Self::TcpThroughput => vec![rate("TCP throughput", "Gbit/s")],
            Self::TcpConnections => vec![rate("TCP connections", "1/s")],
            Self::TcpAnswer => vec![time("TCP answer, p50"), time("TCP answer, p99")],
            Self::UdpAnswer => vec![time("UDP answer, p50"), time("UDP answer, p99")],
            Self::UdpFirstAnswer => {
                vec![time("UDP first answer, p50"), time("UDP first answer, p99")]
            }
            Self::Packets => vec![rate("UDP, 64 bytes", "1/s")],
        }
    }

    /// Measures for the time `slot`.
    pub fn measure(self, line: &Line<'_>, slot: Duration) -> Vec<f64> {
        match self {
            Self::TcpThroughput => line.throughput(slot),
            Self::TcpConnections => line.connections(slot),
            Self::TcpAnswer => line.tcp_answers(slot),
            Self::UdpAnswer => line.udp_answers(slot),
            Self::UdpFirstAnswer => line.udp_first_answers(slot),
            Self::Packets => line.packets(slot),
        }
    }
}

impl Line<'_> {
    fn throughput(&self, slot: Duration) -> Vec<f64> {
        let (client, server) = self.connected();
        client.set_nonblocking(true).unwrap();
        server.set_nonblocking(true).unwrap();
        let (sent, mut received) = (vec![0; CHUNK], vec![0; CHUNK]);
        let batch = || {
            let mut arrived = 0;
            while arrived < STREAMED {
                wait_for((&client).write(&sent));
                arrived += wait_for((&server).read(&mut received));
            }
            arrived
        };
        let bytes = rate(slot, batch);
        vec![bytes * 8.0 / 1e9]
    }

    fn connections(&self, slot: Duration) -> Vec<f64> {
        let listening = self.listen();
        let batch = || {
            for _ in 0..FEW {
                let client = TcpStream::connect(self.target).unwrap();
                let (server, _) = listening.accept().unwrap();
                drop(client);
                drop(server);
            }
            FEW
        };
        vec![self.client.enter(|| rate(slot, batch))]
    }

    fn tcp_answers(&self, slot: Duration) -> Vec<f64> {
        let (client, server) = self.connected();
        let (mut ask, mut answer) = ([1], [1]);
        percentiles(slot, || {
            (&client).write_all(&ask).unwrap();
            (&server).read_exact(&mut ask).unwrap();
            (&server).write_all(&answer).unwrap();
            (&client).read_exact(&mut answer).unwrap();
        })
    }

    fn udp_answers(&self, slot: Duration) -> Vec<f64> {
        let server = self.bound();
        let client = self.client.enter(|| self.caller());
        percentiles(slot, || ask(&client, &server))
    }

    fn udp_first_answers(&self, slot: Duration) -> Vec<f64> {
        let server = self.bound();
        let first = || ask(&self.caller(), &server);
        self.client.enter(|| percentiles(slot, first))
    }

    fn packets(&self, slot: Duration) -> Vec<f64> {
        let server = self.bound();
        let client = self.client.enter(|| self.caller());
        server.set_nonblocking(true).unwrap();
        let mut times = Times::of(slot);
        let mut buffer = PAYLOAD;
        while times.last() {
            let start = Instant::now();
            for _ in 0..MANY {
                // A full queue of a link is not an error here.
                drop(client.send(&PAYLOAD));
            }
            let time = start.elapsed();
            let arrived = std::iter::from_fn(|| server.recv(&mut buffer).ok()).count();
            times.note(time, arrived);
        }
        vec![times.rate()]
    }

    fn listen(&self) -> TcpListener {
        let listen = || TcpListener::bind(("0.0.0.0", SERVER_PORT)).unwrap();
        self.server.enter(listen)
    }

    fn connected(&self) -> (TcpStream, TcpStream) {
        let listening = self.listen();
        let client = self.client.enter(|| TcpStream::connect(self.target));
        let client = client.unwrap_or_else(|error| panic!("{}: {error}", self.target));
        let (server, _) = listening.accept().unwrap();
        for end in [&client, &server] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(LOST)).unwrap();
        }
        (client, server)
    }

    fn bound(&self) -> UdpSocket {
        let bind = || UdpSocket::bind(("0.0.0.0", SERVER_PORT)).unwrap();
        let server = self.server.enter(bind);
        server.set_read_timeout(Some(LOST)).unwrap();
        server
    }

    fn caller(&self) -> UdpSocket {
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client.connect(self.target).unwrap();
        client.set_read_timeout(Some(LOST)).unwrap();
        client
    }
}

/// Exchanges one datagram in each direction. A lost one costs the time-out, which the percentiles
/// then show.
fn ask(client: &UdpSocket, server: &UdpSocket) {
    let mut buffer = [0; 1];
    client.send(&[1]).unwrap();
    if let Ok((_, from)) = server.recv_from(&mut buffer) {
        server.send_to(&[1], from).unwrap();
        drop(client.recv(&mut buffer));
    }
}

/// Returns the number of bytes; none if the call would block.
fn wait_for(done: std::io::Result<usize>) -> usize {
    match done {
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        done => done.unwrap(),
    }
}

/// Repeats a batch, and returns what the median batch does per second.
fn rate(slot: Duration, mut batch: impl FnMut() -> usize) -> f64 {
    let mut times = Times::of(slot);
    while times.last() {
        let start = Instant::now();
        let done = batch();
        times.note(start.elapsed(), done);
    }
    times.rate()
}

/// Repeats an exchange, and returns the microseconds that half and 99 % of them do not exceed.
fn percentiles(slot: Duration, mut exchange: impl FnMut()) -> Vec<f64> {
    let mut times = Times::of(slot);
    while times.last() {
        let start = Instant::now();
        exchange();
        times.note(start.elapsed(), 1);
    }
    [50, 99]
        .map(|percent| times.percentile(percent) * 1e6)
        .into()
}

/// Times of batches. The first ones only warm up the neighbours, routes, buffers and caches.
struct Times {
    start: Instant,
    slot: Duration,
    /// Seconds per unit of each batch.
    seconds: Vec<f64>,
}

impl Times {
    fn of(slot: Duration) -> Self {
        Self {
            start: Instant::now(),
            slot,
            seconds: Vec::new(),
        }
    }

    /// Returns whether the slot lasts. The number of batches is limited, so that new flows do not
    /// fill the table of tracked connections.
    fn last(&self) -> bool {
        let enough = self.seconds.len() > 2 * WARM_UP && self.start.elapsed() > self.slot;
        !enough && self.seconds.len() < MOST
    }

    fn note(&mut self, time: Duration, units: usize) {
        let units = u32::try_from(units).unwrap();
        self.seconds.push(time.as_secs_f64() / f64::from(units));
    }

    fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.seconds[WARM_UP..].to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() - 1) * percent / 100]
    }

    fn rate(&self) -> f64 {
        1.0 / self.percentile(50)
    }
}

/// A frame of 64 bytes has 18 of payload, beside the headers of Ethernet, IPv4 and UDP, and the
/// checksum.
const PAYLOAD: [u8; 18] = [0; 18];

/// Bytes of a call of `write` or `read`.
const CHUNK: usize = 128 * 1024;

/// Bytes of a batch of [`Metric::TcpThroughput`].
const STREAMED: usize = 1024 * 1024;

/// Datagrams of a batch; they fit into the queue of a socket.
const MANY: usize = 64;

/// Connections of a batch.
const FEW: usize = 8;

/// Batches at the start of a slot that do not count.
const WARM_UP: usize = 5;

/// Most batches of a slot.
const MOST: usize = 2_000;

/// When an answer counts as lost.
const LOST: Duration = Duration::from_secs(1);
