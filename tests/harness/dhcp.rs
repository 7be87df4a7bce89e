//! The DHCP daemon under test, and a DHCP server that does as a test wants.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::BindToDevice;
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::place::Place as _;
use crate::{Host, Invocation, Network, Sandbox, eventually};

/// A `dhcp daemon` that runs until this is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts it, and waits until it listens.
    pub fn start(host: &Host) -> Self {
        Self::listening(host, &Self::run(host))
    }

    /// Starts one that gives up within a second if no server answers. A server on a busy machine can
    /// take longer.
    pub fn impatient(host: &Host) -> Self {
        let run = Self::run(host).argument("-timeout=300ms");
        Self::listening(host, &run.argument("-resendtimeout=900ms"))
    }

    /// Returns a run that soon repeats what no server answers.
    pub fn run(host: &Host) -> Invocation {
        let run = host.plugin("dhcp").argument("daemon");
        let run = run.argument(format!("-socketpath={SOCKET}"));
        run.argument("-resendmax=100ms")
    }

    fn listening(host: &Host, run: &Invocation) -> Self {
        let daemon = Self::spawn(host, run);
        daemon.says("listening");
        daemon
    }

    /// Starts this run.
    pub fn spawn(host: &Host, run: &Invocation) -> Self {
        let log = host.dir().join("dhcp.log");
        let mut command = run.command();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&log).unwrap());
        let child = command.spawn().unwrap();
        Self { child, log }
    }

    /// Returns what it wrote to standard error.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until it has written `text`.
    #[track_caller]
    pub fn says(&self, text: &str) {
        assert!(
            eventually(|| self.log().contains(text)),
            "{text:?}: {}",
            self.log()
        );
    }

    /// Ends it by SIGTERM.
    #[track_caller]
    pub fn end(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// Returns whether it runs.
    pub fn is_running(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        stat.is_ok_and(|it| !it.contains(") Z "))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Returns its process ID.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // If strace runs the daemon, its end would only detach it.
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(children).unwrap_or_default();
        for child in children.split_whitespace() {
            kill(Pid::from_raw(child.parse().unwrap()), Signal::SIGKILL).ok();
        }
        // The process may have ended by itself.
        if children.is_empty() {
            drop(self.child.kill());
        }
        drop(self.child.wait());
    }
}

/// Returns the network `pods`: the bridge `cni0` with 10.6.0.1/24 on the host, and `dhcp`.
pub fn network(host: &Host) -> Network<'_> {
    if !host.has_link("cni0") {
        host.ip("link add cni0 type bridge");
        host.ip("address add 10.6.0.1/24 dev cni0");
        host.ip("link set cni0 up");
    }
    let network = host.bridge().with("isGateway", false);
    network.with("ipam", json!({"type": "dhcp", "daemonSocketPath": SOCKET}))
}

/// Returns the network without the bridge, and connects the sandbox to `cni0` itself.
pub fn alone<'h>(host: &'h Host, a: &Sandbox) -> Network<'h> {
    let network = network(host).with("type", "dhcp");
    let pair = format!("port type veth peer name eth0 netns {}", a.name());
    host.ip(&format!("link add {pair}"));
    host.ip("link set port master cni0 up");
    a.ip("link set eth0 up");
    network
}

/// Returns the network `pods` of `plugin` on a card whose network is that of `cni0`, with `dhcp`.
pub fn on_card<'h>(host: &'h Host, plugin: &str) -> Network<'h> {
    let ipam = network(host).config()["ipam"].clone();
    host.card();
    host.ip("link set gate master cni0");
    let network = host.single(plugin).with("master", "card");
    network.with("ipam", ipam)
}

/// Returns the records of the daemon; null for one that is not complete. Leaves out those that the
/// daemon removes meanwhile.
pub fn records() -> Vec<Value> {
    let directory = SOCKET.replace(".sock", ".leases");
    let entries = fs::read_dir(directory).into_iter().flatten();
    let texts = entries.filter_map(|it| fs::read_to_string(it.unwrap().path()).ok());
    let records = texts.map(|it| serde_json::from_str(&it).unwrap_or_default());
    records.collect()
}

/// The daemon's socket.
pub const SOCKET: &str = "/run/test/dhcp.sock";

/// A DHCP server on `cni0` with the address 10.6.0.1, until this is dropped.
#[derive(Debug)]
pub struct Server {
    seen: Arc<Mutex<Vec<Query>>>,
    ends: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

/// A message of a client.
#[derive(Debug, Clone)]
pub struct Query {
    /// The sender.
    pub from: SocketAddrV4,
    /// Kind of the message.
    pub kind: u8,
    /// The client's own address (ciaddr).
    pub client: Ipv4Addr,
    /// Whether the client wants a broadcast.
    pub broadcast: bool,
    /// Options by number.
    pub options: BTreeMap<u8, Vec<u8>>,
    head: Vec<u8>,
}

/// Kinds of messages.
pub const DISCOVER: u8 = 1;
#[expect(missing_docs, reason = "the name of the message says all")]
pub const OFFER: u8 = 2;
#[expect(missing_docs, reason = "the name of the message says all")]
pub const REQUEST: u8 = 3;
#[expect(missing_docs, reason = "the name of the message says all")]
pub const ACK: u8 = 5;
#[expect(missing_docs, reason = "the name of the message says all")]
pub const NAK: u8 = 6;
#[expect(missing_docs, reason = "the name of the message says all")]
pub const RELEASE: u8 = 7;

impl Server {
    /// Starts it. It sends what `answer` returns for a message, each as one packet.
    pub fn start(mut answer: impl FnMut(&Query) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)).unwrap();
        setsockopt(&socket.as_fd(), BindToDevice, &"cni0".into()).unwrap();
        socket.set_broadcast(true).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let (seen, ends) = (
            Arc::<Mutex<Vec<Query>>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let (kept, end) = (Arc::clone(&seen), Arc::clone(&ends));
        let serve = move || {
            let mut buffer = [0; 2048];
            while !end.load(Ordering::Relaxed) {
                // The time-out has expired.
                let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                let std::net::SocketAddr::V4(from) = from else {
                    panic!("{from}")
                };
                let query = Query::read(&buffer[..length], from);
                let answers = answer(&query);
                kept.lock().unwrap().push(query);
                for answer in answers {
                    socket.send_to(&answer, (Ipv4Addr::BROADCAST, 68)).unwrap();
                }
            }
        };
        let thread = Some(thread::spawn(serve));
        Self { seen, ends, thread }
    }

    /// Starts one that leases these addresses for some seconds, the next one to each new client. Refuses
    /// all others.
    pub fn leasing(addresses: &'static [[u8; 4]], seconds: u32) -> Self {
        Self::granting(addresses, move |query, kind, address| {
            query.lease(kind, address, seconds)
        })
    }

    /// Starts the same with leases of a minute, which the client renews after a second.
    pub fn renewing(addresses: &'static [[u8; 4]]) -> Self {
        Self::granting(addresses, |query, kind, address| {
            let [end, renewal, rebinding] = [60_u32, 1, 50].map(u32::to_be_bytes);
            let mask: (u8, &[u8]) = (1, &[255, 255, 255, 0]);
            let times: [(u8, &[u8]); 3] = [(51, &end), (58, &renewal), (59, &rebinding)];
            query.answer(kind, address, &[&[mask], &times[..]].concat())
        })
    }

    fn granting(
        addresses: &'static [[u8; 4]],
        grant: impl Fn(&Query, u8, [u8; 4]) -> Vec<u8> + Send + 'static,
    ) -> Self {
        let mut next = addresses.iter().copied().cycle();
        let mut known = BTreeMap::new();
        Self::start(move |query| {
            let client = query.options[&61].clone();
            let wanted = query.wanted().octets();
            match query.kind {
                DISCOVER => {
                    let own = known.entry(client).or_insert_with(|| next.next().unwrap());
                    vec![grant(query, OFFER, *own)]
                }
                REQUEST if known.get(&client).is_none_or(|it| *it == wanted) => {
                    vec![grant(query, ACK, wanted)]
                }
                REQUEST => vec![query.refuse()],
                _ => Vec::new(),
            }
        })
    }

    /// Returns the messages until now.
    pub fn seen(&self) -> Vec<Query> {
        self.seen.lock().unwrap().clone()
    }

    /// Returns the messages of a kind until now.
    pub fn seen_of(&self, kind: u8) -> Vec<Query> {
        let mut seen = self.seen();
        seen.retain(|it| it.kind == kind);
        seen
    }

    /// Waits until a message satisfies `wanted`, and returns it.
    #[track_caller]
    pub fn sees(&self, wanted: impl Fn(&Query) -> bool) -> Query {
        let mut found = None;
        let is_seen = eventually(|| {
            found = self.seen().into_iter().find(&wanted);
            found.is_some()
        });
        assert!(is_seen, "{:#?}", self.seen());
        found.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Query {
    fn read(bytes: &[u8], from: SocketAddrV4) -> Self {
        let mut options = BTreeMap::new();
        let mut rest = &bytes[240..];
        while let [code @ 1..=254, length, tail @ ..] = rest {
            let (value, tail) = tail.split_at(usize::from(*length));
            options.insert(*code, value.to_vec());
            rest = tail;
        }
        Self {
            from,
            kind: options[&53][0],
            client: address(&bytes[12..16]),
            broadcast: bytes[10] & 0x80 != 0,
            options,
            head: bytes[..240].to_vec(),
        }
    }

    /// Returns the address that the client asks for, or has.
    pub fn wanted(&self) -> Ipv4Addr {
        self.options.get(&50).map_or(self.client, |it| address(it))
    }

    /// Returns the client's MAC (chaddr).
    pub fn mac(&self) -> String {
        let bytes = self.head[28..34].iter().map(|it| format!("{it:02x}"));
        bytes.collect::<Vec<_>>().join(":")
    }

    /// Returns the text of an option.
    pub fn text(&self, code: u8) -> String {
        String::from_utf8(self.options[&code].clone()).unwrap()
    }

    /// Returns an answer of this kind, with the options `more`.
    pub fn answer(&self, kind: u8, yours: [u8; 4], more: &[(u8, &[u8])]) -> Vec<u8> {
        let mut answer = self.head.clone();
        answer[0] = 2;
        answer[16..20].copy_from_slice(&yours);
        for (code, value) in [(53, [kind].as_slice()), (54, &[10, 6, 0, 1])]
            .iter()
            .chain(more)
        {
            answer.extend([*code, u8::try_from(value.len()).unwrap()]);
            answer.extend(*value);
        }
        answer.push(255);
        answer
    }

    /// Returns an OFFER or ACK with a mask, a router and a time in seconds.
    pub fn lease(&self, kind: u8, yours: [u8; 4], seconds: u32) -> Vec<u8> {
        let time = seconds.to_be_bytes();
        self.answer(
            kind,
            yours,
            &[(1, &[255, 255, 255, 0]), (3, &[10, 6, 0, 1]), (51, &time)],
        )
    }

    /// Returns a NAK.
    pub fn refuse(&self) -> Vec<u8> {
        self.answer(NAK, [0; 4], &[(56, b"not yours")])
    }
}

fn address(bytes: &[u8]) -> Ipv4Addr {
    <[u8; 4]>::try_from(bytes).unwrap().into()
}
