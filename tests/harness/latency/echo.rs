//! Small requests and their answers.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::Line;
use crate::Place as _;
use crate::traffic::wait_until;

/// A client that asks and a server that answers, over UDP.
pub(super) struct Echo {
    client: UdpSocket,
    server: UdpSocket,
    /// Time from one request to the next one.
    interval: Duration,
    /// When each request was sent.
    sent: Mutex<Vec<Instant>>,
}

impl Echo {
    pub(super) fn open(line: &Line<'_>, rate: u64) -> Self {
        let address = SocketAddr::new(line.address.parse().unwrap(), 0);
        let server = line.server.enter(|| UdpSocket::bind(address).unwrap());
        let client = line.client.enter(|| {
            let client = UdpSocket::bind("0.0.0.0:0").unwrap();
            client.connect(server.local_addr().unwrap()).unwrap();
            client
        });
        for end in [&client, &server] {
            end.set_read_timeout(Some(TICK)).unwrap();
        }
        let least = Duration::from_nanos(FRAME * 8 * SHARE * 1_000_000_000 / rate);
        Self {
            client,
            server,
            interval: least.max(LEAST_INTERVAL),
            sent: Mutex::default(),
        }
    }

    /// Asks as long as `asking` is true, and answers as long as `loading` is true. Returns the
    /// milliseconds that the answers took, and the share of requests without an answer after
    /// `patience`.
    pub(super) fn start<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        (asking, loading): (&'s AtomicBool, &'s AtomicBool),
        patience: Duration,
    ) -> ScopedJoinHandle<'s, (Vec<f64>, f64)> {
        scope.spawn(|| self.answer(loading));
        scope.spawn(|| self.ask(asking));
        scope.spawn(move || self.listen(asking, patience))
    }

    fn answer(&self, loading: &AtomicBool) {
        let mut buffer = [0; 8];
        while loading.load(Ordering::Relaxed) {
            if let Ok((_, from)) = self.server.recv_from(&mut buffer) {
                drop(self.server.send_to(&buffer, from));
            }
        }
    }

    fn ask(&self, asking: &AtomicBool) {
        let mut due = Instant::now();
        while asking.load(Ordering::Relaxed) {
            let number = {
                let mut sent = self.sent.lock().unwrap();
                sent.push(Instant::now());
                sent.len() - 1
            };
            // A full queue is a lost request.
            drop(self.client.send(&number.to_be_bytes()));
            due = (due + self.interval).max(Instant::now());
            wait_until(due);
        }
    }

    fn listen(&self, asking: &AtomicBool, patience: Duration) -> (Vec<f64>, f64) {
        let mut waits = Vec::new();
        let mut end = None;
        let mut buffer = [0; 8];
        loop {
            if let Ok(8) = self.client.recv(&mut buffer) {
                let now = Instant::now();
                let sent = self.sent.lock().unwrap()[usize::from_be_bytes(buffer)];
                waits.push((now - sent).as_secs_f64() * 1e3);
            }
            if asking.load(Ordering::Relaxed) {
                continue;
            }
            let end = *end.get_or_insert(Instant::now() + patience);
            if waits.len() == self.sent.lock().unwrap().len() || Instant::now() > end {
                break;
            }
        }
        waits.sort_by(f64::total_cmp);
        let all = self.sent.lock().unwrap().len();
        let lost = all - waits.len();
        let [lost, all] = [lost, all].map(|it| f64::from(u32::try_from(it).unwrap()));
        (waits, lost / all)
    }
}

/// Bytes of a request with all headers.
const FRAME: u64 = 50;

/// Requests need at most this part of the rate: one of 40.
const SHARE: u64 = 40;

const LEAST_INTERVAL: Duration = Duration::from_millis(20);

/// Interval at which an end checks whether it should stop.
const TICK: Duration = Duration::from_millis(20);
