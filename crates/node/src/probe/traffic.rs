//! Sends packets through the copy of the node, and finds out whether they arrive.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;
use netns::Netns;
use nft::{Ended, Protocol, Tracer};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::stage::{Path, Stage};

/// Outcome of a packet and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The packet and its answer arrived.
    Passed,
    /// No answer arrived, and a rule or a policy of `nf_tables` dropped, rejected or queued a
    /// packet.
    Ended(Ended),
    /// No answer arrived, and `nf_tables` dropped, rejected or queued no packet. The text is the
    /// first rule or policy of legacy iptables that dropped or rejected a packet on any path, if
    /// there is one.
    Lost(Option<String>),
}

/// The outcome on each path.
type Outcomes = Vec<(Path, Outcome)>;

/// The network namespaces of the pod and of the other host.
pub(super) struct Sides {
    pub pod: Netns,
    pub elsewhere: Netns,
}

/// Sends a packet through the copy of the node on each path. Returns the outcomes, and the address
/// from which the simulated remote host received the pod's TCP packet, if it arrived.
pub(super) fn outcomes(
    Sides { pod, elsewhere }: &Sides,
    stage: &Stage,
    tracer: &Tracer,
) -> anyhow::Result<(Outcomes, Option<IpAddr>)> {
    let host = self::elsewhere(stage.pod.is_ipv4());
    let mut paths = vec![
        Path::ToElsewhere(Protocol::Tcp),
        Path::ToElsewhere(Protocol::Udp),
        Path::ToNode(Protocol::Udp, DNS),
        Path::FromNode,
    ];
    paths.extend(stage.host_port.map(|(port, _)| Path::ToHostPort(port)));
    let node = Netns::own()?;
    let (mut outcomes, mut sender) = (Vec::new(), None);
    for path in paths {
        let (protocol, [from, to], [at, listening]) = match path {
            Path::ToElsewhere(it) => (it, [pod, elsewhere], [(host, HTTPS); 2]),
            Path::ToNode(it, port) => (it, [pod, &node], [(stage.gateway, port); 2]),
            Path::FromNode => {
                let ends = [(stage.pod.ip(), HTTP); 2];
                (Protocol::Tcp, [&node, pod], ends)
            }
            Path::ToHostPort(port) => {
                let target = stage.host_port.map_or(port, |(_, target)| target);
                let ends = [(uplink_address(stage), port), (stage.pod.ip(), target)];
                (Protocol::Tcp, [elsewhere, pod], ends)
            }
        };
        let exchange = Exchange {
            protocol,
            to: at.into(),
            listening: listening.into(),
            sender: OnceLock::new(),
        };
        outcomes.push((path, exchange.outcome([from, to], tracer)?));
        if path == Path::ToElsewhere(Protocol::Tcp) {
            sender = exchange.sender.into_inner();
        }
    }
    Ok((outcomes, sender))
}

/// Returns the address of the simulated remote host, which the copy of the node reaches through the
/// copy's uplink. The address is public, because rules may drop packets with private and reserved
/// addresses. Only links in the temporary namespaces have it.
pub(super) fn elsewhere(is_ipv4: bool) -> IpAddr {
    if is_ipv4 {
        return IpAddr::from([9, 9, 9, 9]);
    }
    IpAddr::from([0x2620, 0xfe, 0, 0, 0, 0, 0, 0xfe])
}

/// Returns the address at which the simulated remote host reaches the copy of the node. It is the
/// uplink's first address of the pod's IP family or, if the uplink has none, the pod's gateway.
pub(super) fn uplink_address(stage: &Stage) -> IpAddr {
    let of_uplink = |it: &&(u32, IpNetwork)| it.0 == stage.uplink.index;
    let mut own = stage.addresses.iter().filter(of_uplink).map(|it| it.1.ip());
    let own = own.find(|it| it.is_ipv4() == stage.pod.is_ipv4());
    own.unwrap_or(stage.gateway)
}

/// A packet and its answer.
struct Exchange {
    protocol: Protocol,
    /// Destination of the packet.
    to: SocketAddr,
    /// Address of the socket that answers. It differs from `to` for a hostPort, because the rules
    /// translate the destination of these packets (DNAT).
    listening: SocketAddr,
    /// Source address of the first TCP packet that arrived.
    sender: OnceLock<IpAddr>,
}

impl Exchange {
    fn outcome(&self, [from, to]: [&Netns; 2], tracer: &Tracer) -> anyhow::Result<Outcome> {
        tracer.ended()?;
        let serve = to.run(|| self.server())??;
        let is_over = &AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    serve();
                }
            });
            let (answered, answer) = mpsc::channel();
            scope.spawn(move || drop(answered.send(from.run(|| self.ask(is_over)))));
            let outcome = outcome(tracer, &answer);
            is_over.store(true, Ordering::Relaxed);
            Ok(outcome?)
        })
    }

    /// Returns a function that waits up to `PAUSE` for one request and answers it.
    fn server(&self) -> io::Result<Box<dyn Fn() + Send + '_>> {
        if self.protocol == Protocol::Tcp {
            let listener = TcpListener::bind(self.listening)?;
            set_socket_timeout(&listener, Timeout::Recv, Some(PAUSE))?;
            return Ok(Box::new(move || {
                let accepted = listener.accept();
                drop(accepted.and_then(|(mut stream, from)| {
                    self.sender.get_or_init(|| from.ip());
                    stream.write_all(&[0])
                }));
            }));
        }
        let socket = UdpSocket::bind(self.listening)?;
        socket.set_read_timeout(Some(PAUSE))?;
        Ok(Box::new(move || {
            let received = socket.recv_from(&mut [0]);
            drop(received.and_then(|(_, from)| socket.send_to(&[0], from)));
        }))
    }

    /// Sends requests until an answer arrives.
    ///
    /// # Errors
    /// No answer arrives: `is_over` is set, `PATIENCE` has passed, or a socket reports an error.
    fn ask(&self, is_over: &AtomicBool) -> io::Result<()> {
        let mut answer = [0; 1];
        let begun = Instant::now();
        let is_on = || !is_over.load(Ordering::Relaxed) && begun.elapsed() < PATIENCE;
        while self.protocol == Protocol::Tcp && is_on() {
            match TcpStream::connect_timeout(&self.to, RETRY) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                stream => {
                    let mut stream = stream?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    return stream.read_exact(&mut answer);
                }
            }
        }
        let any = if self.to.is_ipv4() {
            "0.0.0.0:0"
        } else {
            "[::]:0"
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(self.to)?;
        socket.set_read_timeout(Some(RETRY))?;
        while self.protocol == Protocol::Udp && is_on() {
            socket.send(&answer)?;
            if socket.recv(&mut answer).is_ok() {
                return Ok(());
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// Returns the outcome of a packet. Waits for the answer up to `PATIENCE`, but only `GRACE` longer
/// once `tracer` reports that `nf_tables` dropped, rejected or queued a packet.
fn outcome<E>(
    tracer: &Tracer,
    answer: &mpsc::Receiver<Result<io::Result<()>, E>>,
) -> Result<Outcome, nft::Error> {
    let begun = Instant::now();
    let mut first: Option<(Ended, Instant)> = None;
    loop {
        let came = answer.recv_timeout(PAUSE);
        for ended in tracer.ended()? {
            first.get_or_insert((ended, Instant::now()));
        }
        let is_failed = match came {
            Ok(Ok(Ok(()))) => return Ok(Outcome::Passed),
            Ok(_) => true,
            Err(_) => begun.elapsed() > PATIENCE,
        };
        // The reported packet may not belong to this exchange. So the answer can still arrive, and
        // the function waits for it during `GRACE`.
        let is_late = first.as_ref().is_some_and(|it| it.1.elapsed() > GRACE);
        if is_failed || is_late {
            return Ok(first.map_or(Outcome::Lost(None), |(ended, _)| Outcome::Ended(ended)));
        }
    }
}

const HTTP: u16 = 8080;
const HTTPS: u16 = 443;
const DNS: u16 = 53;

/// Longest wait for an answer. A packet passes the copy of the node's rules (a network namespace)
/// within microseconds, but the machine may be busy.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Longest wait for the answer after `nf_tables` dropped, rejected or queued any packet in the
/// copy.
const GRACE: Duration = Duration::from_millis(200);

/// Wait for an answer before the packet is sent again.
const RETRY: Duration = Duration::from_millis(300);

/// Time between two checks of a thread whether the exchange is over.
const PAUSE: Duration = Duration::from_millis(5);
