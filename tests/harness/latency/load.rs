//! The load: what competes with the small packets for the rate.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use super::{Limit, Line, Trial};
use crate::Place as _;
use crate::traffic::wait_until;

/// A kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Four connections that send what they can, or together the rate without a limit.
    Tcp,
    /// Datagrams of 1,400 bytes: 1.2 times the rate, or the rate without a limit.
    Udp,
}

/// The open sockets of a load.
pub(super) struct Streams {
    pairs: Vec<Pair>,
    /// Time from one packet of a stream to the next one; `None` sends without a pause.
    pace: Option<Duration>,
}

/// A sender and its receiver.
enum Pair {
    Tcp(TcpStream, TcpStream),
    Udp(UdpSocket, UdpSocket),
}

impl Streams {
    pub(super) fn open(line: &Line<'_>, trial: &Trial, limit: Limit) -> Self {
        let count = match trial.load {
            Load::Tcp => FLOWS,
            Load::Udp => 1,
        };
        let pairs = (0..count).map(|_| Pair::open(line, trial.load)).collect();
        let rate = match (trial.load, limit) {
            (Load::Tcp, Limit::Set) => None,
            (Load::Tcp, Limit::None) => Some(trial.rate / u64::from(FLOWS)),
            (Load::Udp, Limit::Set) => Some(trial.rate * 6 / 5),
            (Load::Udp, Limit::None) => Some(trial.rate),
        };
        let pace = rate.map(|rate| Duration::from_nanos(FRAME * 8 * 1_000_000_000 / rate));
        Self { pairs, pace }
    }

    /// Sends as long as `loading` is true.
    pub(super) fn start<'s>(&'s self, scope: &'s Scope<'s, '_>, loading: &'s AtomicBool) {
        for pair in &self.pairs {
            scope.spawn(move || pair.receive(loading));
            scope.spawn(move || pair.send(self.pace, loading));
        }
    }
}

impl Pair {
    fn open(line: &Line<'_>, load: Load) -> Self {
        let address = SocketAddr::new(line.address.parse().unwrap(), 0);
        match load {
            Load::Tcp => {
                let listening = line.server.enter(|| TcpListener::bind(address).unwrap());
                let target = listening.local_addr().unwrap();
                let sender = line.client.enter(|| TcpStream::connect(target)).unwrap();
                sender.set_nodelay(true).unwrap();
                sender.set_write_timeout(Some(TICK)).unwrap();
                let (receiver, _) = listening.accept().unwrap();
                receiver.set_read_timeout(Some(TICK)).unwrap();
                Self::Tcp(sender, receiver)
            }
            Load::Udp => {
                let receiver = line.server.enter(|| UdpSocket::bind(address).unwrap());
                receiver.set_read_timeout(Some(TICK)).unwrap();
                let sender = line.client.enter(|| {
                    let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
                    sender.connect(receiver.local_addr().unwrap()).unwrap();
                    sender
                });
                Self::Udp(sender, receiver)
            }
        }
    }

    fn send(&self, pace: Option<Duration>, loading: &AtomicBool) {
        let buffer = vec![0; CHUNK];
        let mut due = Instant::now();
        while loading.load(Ordering::Relaxed) {
            let size = pace.map_or(CHUNK, |_| PAYLOAD);
            match self {
                // A full queue is not an error.
                Self::Udp(sender, _) => drop(sender.send(&buffer[..size])),
                Self::Tcp(sender, _) => drop((&*sender).write(&buffer[..size])),
            }
            if let Some(pace) = pace {
                due += pace;
                // A sender that the machine has held up does not send all at once.
                if due + MOST_LATE < Instant::now() {
                    due = Instant::now();
                }
                wait_until(due);
            }
        }
    }

    fn receive(&self, loading: &AtomicBool) {
        let mut buffer = vec![0; CHUNK];
        while loading.load(Ordering::Relaxed) {
            match self {
                Self::Udp(_, receiver) => drop(receiver.recv(&mut buffer)),
                Self::Tcp(_, receiver) => drop((&*receiver).read(&mut buffer)),
            }
        }
    }
}

const FLOWS: u32 = 4;

/// Bytes of a packet, without headers and with those of Ethernet, IPv4 and UDP.
const PAYLOAD: usize = 1400;
const FRAME: u64 = 1442;

/// Bytes that a TCP sender writes at once.
const CHUNK: usize = 64 * 1024;

/// Interval at which a stream checks whether it should end.
const TICK: Duration = Duration::from_millis(100);

/// What a sender may catch up with.
const MOST_LATE: Duration = Duration::from_millis(20);
