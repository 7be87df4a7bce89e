//! Datagrams and connections between two places, and floods of both.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::{Linger, ReceiveTimeout, SendTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, listen,
    setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use crate::counter::Counter;
use crate::eventually;
use crate::place::Place;

/// Longest time of a datagram within one machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest time of a connection. Hundreds of pods that ask for routers at once receive each other's
/// requests. Then a processor's queue (`netdev_max_backlog`) overflows and the kernel drops
/// packets, such as a SYN or an ARP request. Both are repeated after one second, a SYN once more
/// after three.
const CONNECTING: Duration = Duration::from_secs(5);

/// Returns whether a datagram from `client` to `address` of `server` is answered.
pub fn udp(client: &impl Place, server: &impl Place, address: &str) -> bool {
    let listening = server.enter(|| UdpSocket::bind(anywhere(address)).unwrap());
    let target = listening.local_addr().unwrap();
    datagram(client, target, &listening).is_some()
}

/// Sends a datagram like [`udp`] through a host's port: from `client` to `target`, while `server`
/// listens at `port` of every address. Returns the source address that the server sees.
pub fn udp_by_port(
    client: &impl Place,
    target: &str,
    (server, port): (&impl Place, u16),
) -> Option<IpAddr> {
    let target: SocketAddr = target.parse().unwrap();
    let every = SocketAddr::new(unspecified(target).ip(), port);
    let listening = server.enter(|| free(|| UdpSocket::bind(every)));
    datagram(client, target, &listening)
}

/// Returns the socket that `bind` binds to a port. Another thread may have just forked a process,
/// which holds the socket of an earlier call until it executes its program. So this function waits
/// while the port is in use.
fn free<S>(bind: impl Fn() -> io::Result<S>) -> S {
    let mut bound = bind();
    eventually(|| match &bound {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            bound = bind();
            false
        }
        _ => true,
    });
    bound.unwrap()
}

fn datagram(client: &impl Place, target: SocketAddr, listening: &UdpSocket) -> Option<IpAddr> {
    listening.set_read_timeout(Some(PATIENCE)).unwrap();
    let calling = client.enter(|| UdpSocket::bind(unspecified(target)).unwrap());
    calling.set_read_timeout(Some(PATIENCE)).unwrap();
    // An answer from another address does not count.
    client.enter(|| calling.connect(target)).ok()?;
    calling.send(b"ping").ok()?;
    let mut buffer = [0; 16];
    let (_, from) = listening.recv_from(&mut buffer).ok()?;
    listening.send_to(b"pong", from).ok()?;
    calling.recv(&mut buffer).ok()?;
    Some(from.ip())
}

/// Gives `client` the address `source`, and returns whether a datagram with it arrives at `address` of
/// `server`.
pub fn arrives_from(
    client: &impl Place,
    source: &str,
    (server, address): (&impl Place, &str),
) -> bool {
    client.ip(&format!("address replace {source} dev lo nodad"));
    let listening = server.enter(|| UdpSocket::bind(anywhere(address)).unwrap());
    listening.set_read_timeout(Some(PATIENCE)).unwrap();
    let calling = client.enter(|| UdpSocket::bind(anywhere(source)).unwrap());
    // The kernel may refuse it at once.
    let target = listening.local_addr().unwrap();
    client.enter(|| calling.send_to(b"ping", target)).ok();
    listening.recv(&mut [0; 16]).is_ok()
}

/// Opens a connection from `client` to `address` of `server` that must carry data in both
/// directions. Returns the source address that the server sees.
pub fn tcp(client: &impl Place, server: &impl Place, address: &str) -> Option<IpAddr> {
    let listening = server.enter(|| TcpListener::bind(anywhere(address)).unwrap());
    let target = listening.local_addr().unwrap();
    let calling = client.enter(|| TcpStream::connect_timeout(&target, CONNECTING));
    carries(calling.ok()?, &listening)
}

/// Returns the client address that the server of [`tcp`] sees, or "none".
pub fn client_seen(client: &impl Place, server: &impl Place, address: &str) -> String {
    let seen = tcp(client, server, address);
    seen.map_or("none".to_owned(), |address| address.to_string())
}

/// Opens a connection like [`tcp`] through a host's port: from `client` to `target`, while `server`
/// listens at `port` of every address.
pub fn tcp_by_port(
    client: &impl Place,
    target: &str,
    (server, port): (&impl Place, u16),
) -> Option<IpAddr> {
    let target: SocketAddr = target.parse().unwrap();
    let every = SocketAddr::new(unspecified(target).ip(), port);
    let listening = server.enter(|| free(|| TcpListener::bind(every)));
    let calling = client.enter(|| TcpStream::connect_timeout(&target, CONNECTING));
    carries(calling.ok()?, &listening)
}

/// Opens a connection like [`tcp_by_port`] with SCTP, which the standard library lacks.
pub fn sctp_by_port(
    client: &impl Place,
    target: &str,
    (server, port): (&impl Place, u16),
) -> Option<IpAddr> {
    let target: SocketAddr = target.parse().unwrap();
    let every = SocketAddr::new(unspecified(target).ip(), port);
    let listening = server.enter(|| {
        let socket = sctp_socket(target);
        bind(socket.as_raw_fd(), &SockaddrStorage::from(every)).unwrap();
        listen(&socket, Backlog::new(1).unwrap()).unwrap();
        TcpListener::from(socket)
    });
    let calling = client.enter(|| {
        let socket = sctp_socket(target);
        let patience = TimeVal::seconds(PATIENCE.as_secs().try_into().unwrap());
        setsockopt(&socket, SendTimeout, &patience).unwrap();
        let target = SockaddrStorage::from(target);
        nix::sys::socket::connect(socket.as_raw_fd(), &target).map(|()| socket)
    });
    carries(TcpStream::from(calling.ok()?), &listening)
}

fn sctp_socket(like: SocketAddr) -> OwnedFd {
    let family = if like.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let none = SockFlag::empty();
    let made = socket(family, SockType::Stream, none, SockProtocol::Sctp);
    made.expect("SCTP, which this kernel may lack")
}

/// A connection that stays open.
#[derive(Debug)]
pub struct Connection {
    calling: TcpStream,
    answering: TcpStream,
}

impl Connection {
    /// Opens a connection from `client` to `target`, which is forwarded to `port` of `server`.
    #[track_caller]
    pub fn open(client: &impl Place, target: &str, (server, port): (&impl Place, u16)) -> Self {
        let target: SocketAddr = target.parse().unwrap();
        let every = SocketAddr::new(unspecified(target).ip(), port);
        let listening = server.enter(|| free(|| TcpListener::bind(every)));
        let calling = client.enter(|| TcpStream::connect_timeout(&target, CONNECTING));
        let calling = calling.unwrap();
        let (answering, _) = listening.accept().unwrap();
        Self { calling, answering }
    }

    /// Opens a connection like [`Self::open`] from a chosen address and port; `None` without an
    /// answer.
    pub fn open_from(
        (client, source): (&impl Place, &str),
        target: &str,
        (server, port): (&impl Place, u16),
    ) -> Option<Self> {
        let [source, target]: [SocketAddr; 2] = [source, target].map(|it| it.parse().unwrap());
        let every = SocketAddr::new(unspecified(target).ip(), port);
        let listening = server.enter(|| free(|| TcpListener::bind(every)));
        let calling = client.enter(|| connect(source, target)).ok()?;
        let (answering, _) = listening.accept().unwrap();
        Some(Self { calling, answering })
    }

    /// Ends the connection; the other side is not notified if no packet can leave.
    pub fn vanish(self) {
        let at_once = nix::libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        for end in [self.calling, self.answering] {
            setsockopt(&end, Linger, &at_once).unwrap();
        }
    }

    /// Swaps the sides, so the server sends first.
    pub fn turned(self) -> Self {
        Self {
            calling: self.answering,
            answering: self.calling,
        }
    }

    /// Returns whether data from each side arrives at the other within two seconds.
    pub fn carries(&mut self) -> bool {
        let Self { calling, answering } = self;
        let mut buffer = [0; 4];
        let mut hear = |said: &mut TcpStream, heard: &mut TcpStream| {
            heard.set_read_timeout(Some(PATIENCE)).unwrap();
            said.write_all(b"ping")
                .and_then(|()| heard.read_exact(&mut buffer))
        };
        hear(calling, answering).is_ok() && hear(answering, calling).is_ok()
    }
}

/// Checks that data from each side arrives at the other. Returns the caller's address.
fn carries(mut calling: TcpStream, listening: &TcpListener) -> Option<IpAddr> {
    // Another server may have answered; the listener learns of a connection a little after its
    // client.
    let patience = TimeVal::seconds(PATIENCE.as_secs().try_into().unwrap());
    setsockopt(listening, ReceiveTimeout, &patience).unwrap();
    let (mut accepted, from) = listening.accept().ok()?;
    calling.set_read_timeout(Some(PATIENCE)).unwrap();
    accepted.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 4];
    calling.write_all(b"ping").ok()?;
    accepted.read_exact(&mut buffer).ok()?;
    accepted.write_all(b"pong").ok()?;
    calling.read_exact(&mut buffer).ok()?;
    Some(from.ip())
}

/// Kind of a flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flood {
    /// Datagrams of 1,400 bytes, in sequence.
    Udp,
    /// One connection.
    Tcp,
}

/// Floods `address` of `server` from `source` of `client` for some seconds. Returns the bits that
/// arrived at the server's `link` in each second, including all headers.
pub fn flood(
    flood: Flood,
    client: (&(impl Place + Sync), &str),
    server: (&(impl Place + Sync), &str, &str),
    seconds: usize,
) -> Vec<f64> {
    flood_while(flood, client, server, |second| second < seconds)
}

/// Floods like [`flood`] as long as `lasts` returns true for the number of the next second.
pub fn flood_while(
    flood: Flood,
    (client, source): (&(impl Place + Sync), &str),
    (server, address, link): (&(impl Place + Sync), &str, &str),
    lasts: impl FnMut(usize) -> bool,
) -> Vec<f64> {
    let stop = &AtomicBool::new(false);
    let (to, from) = connected((client, source), (server, address), flood);
    thread::scope(|scope| {
        scope.spawn(|| drain(&from, stop));
        let rates = arriving((server, link), lasts, || {
            scope.spawn(|| pour(&to, stop));
        });
        stop.store(true, Ordering::Relaxed);
        rates
    })
}

/// Returns the bits that arrive at a link in each second after `start`, including all headers, as
/// long as `lasts` returns true for the number of the next second.
pub(crate) fn arriving(
    (place, link): (&impl Place, &str),
    mut lasts: impl FnMut(usize) -> bool,
    start: impl FnOnce(),
) -> Vec<f64> {
    let mut counter = Counter::of(place, link);
    let mut before = counter.read();
    start();
    let mut rates = Vec::new();
    while lasts(rates.len()) {
        wait_until(before.1 + Duration::from_secs(1));
        let now = counter.read();
        let bytes = u32::try_from(now.0 - before.0).unwrap();
        let rate = f64::from(bytes) * 8.0 / (now.1 - before.1).as_secs_f64();
        before = now;
        rates.push(rate);
    }
    rates
}

/// Waits until a moment.
pub fn wait_until(moment: Instant) {
    while let Some(rest) = moment.checked_duration_since(Instant::now()) {
        thread::park_timeout(rest);
    }
}

/// Returns `address` with any free port.
fn anywhere(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), 0)
}

fn unspecified(like: SocketAddr) -> SocketAddr {
    let any = if like.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    any.parse().unwrap()
}

/// An end of a flood.
enum Pipe {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

fn connected(
    (client, source): (&impl Place, &str),
    (server, address): (&impl Place, &str),
    flood: Flood,
) -> (Pipe, Pipe) {
    let [source, address] = [source, address].map(|it| SocketAddr::new(it.parse().unwrap(), 0));
    match flood {
        Flood::Udp => {
            let to = server.enter(|| UdpSocket::bind(address).unwrap());
            let from = client.enter(|| UdpSocket::bind(source).unwrap());
            from.connect(to.local_addr().unwrap()).unwrap();
            (Pipe::Udp(from), Pipe::Udp(to))
        }
        Flood::Tcp => {
            let listening = server.enter(|| TcpListener::bind(address).unwrap());
            let target = listening.local_addr().unwrap();
            // The standard library cannot bind a socket before it connects.
            let from = client.enter(|| connect(source, target)).unwrap();
            (Pipe::Tcp(from), Pipe::Tcp(listening.accept().unwrap().0))
        }
    }
}

fn connect(source: SocketAddr, target: SocketAddr) -> nix::Result<TcpStream> {
    let (family, none) = match source {
        SocketAddr::V4(_) => (AddressFamily::Inet, SockFlag::empty()),
        SocketAddr::V6(_) => (AddressFamily::Inet6, SockFlag::empty()),
    };
    let made = socket(family, SockType::Stream, none, None)?;
    let patience = TimeVal::seconds(PATIENCE.as_secs().try_into().unwrap());
    setsockopt(&made, SendTimeout, &patience)?;
    bind(made.as_raw_fd(), &SockaddrStorage::from(source))?;
    nix::sys::socket::connect(made.as_raw_fd(), &SockaddrStorage::from(target))?;
    Ok(made.into())
}

fn pour(to: &Pipe, stop: &AtomicBool) {
    let buffer = vec![0; 64 * 1024];
    while !stop.load(Ordering::Relaxed) {
        match to {
            // A full queue is not an error.
            Pipe::Udp(socket) => drop(socket.send(&buffer[..1400])),
            Pipe::Tcp(stream) => {
                stream.set_write_timeout(Some(TICK)).unwrap();
                drop((&*stream).write(&buffer));
            }
        }
    }
}

fn drain(from: &Pipe, stop: &AtomicBool) {
    let mut buffer = vec![0; 64 * 1024];
    while !stop.load(Ordering::Relaxed) {
        match from {
            Pipe::Udp(socket) => {
                socket.set_read_timeout(Some(TICK)).unwrap();
                drop(socket.recv(&mut buffer));
            }
            Pipe::Tcp(stream) => {
                stream.set_read_timeout(Some(TICK)).unwrap();
                drop((&*stream).read(&mut buffer));
            }
        }
    }
}

/// Interval at which a flood checks whether it should end.
const TICK: Duration = Duration::from_millis(100);
