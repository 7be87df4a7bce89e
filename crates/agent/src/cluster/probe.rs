//! Sends packets directly to other nodes, and waits for answers.
//!
//! The packets are echo requests to the end of the other node's tunnel, which the kernel there answers.
//! It limits its ICMP errors, but not these answers. They repeat random bytes, so only a host that has
//! seen the request can answer it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use cluster::{DirectRoute, Tunnel};
use ipnetwork::IpNetwork;
use nix::net::if_::if_indextoname;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::BindToDevice;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6,
    SockaddrStorage, bind, recvfrom, sendto, setsockopt, socket,
};

/// Returns those of the routes by which packets of pods pass in both directions. All `routes` use the
/// same link and have the family of `tunnel`. Takes at most [`PATIENCE`] for each of the [`HOSTS`].
///
/// # Errors
/// The link or the tunnel's address does not exist.
pub(super) fn passing(
    routes: &BTreeSet<DirectRoute>,
    tunnel: &Tunnel,
    link: u32,
) -> nix::Result<BTreeSet<DirectRoute>> {
    let mut probe = Probe::open(tunnel, link)?;
    let expected = |it: &DirectRoute| SOURCES.map(|source| (it.network, source));
    let mut open: BTreeSet<_> = routes.iter().flat_map(expected).collect();
    for host in HOSTS {
        let start = Instant::now();
        for expected in open.clone() {
            probe.send(expected, host);
            probe.receive(&mut open);
        }
        // An agent that lacks time looks for answers once more when the time is over.
        loop {
            let rest = PATIENCE.checked_sub(start.elapsed());
            probe.receive(&mut open);
            match rest.filter(|_| !open.is_empty()) {
                Some(rest) => probe.wait(rest),
                None => break,
            }
        }
    }
    let passing = routes
        .iter()
        .filter(|it| !expected(it).iter().any(|it| open.contains(it)));
    Ok(passing.copied().collect())
}

/// The source of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    /// The address of the tunnel's end, which is in this node's pod CIDR. The answer comes on any way.
    Pods,
    /// The node's own address. The answer, whose source is in the other node's pod CIDR, comes directly.
    Node,
}

const SOURCES: [Source; 2] = [Source::Pods, Source::Node];

/// An answer from the network of another node's pods.
type Expected = (IpNetwork, Source);

/// Requests on their way to nodes in the network of one link.
struct Probe {
    /// Sends from the tunnel's address through the link.
    pods: OwnedFd,
    /// Receives answers at this address through all links.
    any: OwnedFd,
    /// Sends from the node's address, and receives, through the link.
    node: OwnedFd,
    /// The destination of each request, and what its answer proves, by its content.
    sent: BTreeMap<Content, (IpAddr, Expected)>,
}

impl Probe {
    fn open(tunnel: &Tunnel, link: u32) -> nix::Result<Self> {
        Ok(Self {
            pods: bound(tunnel.address, Some(link))?,
            any: bound(tunnel.address, None)?,
            node: bound(tunnel.local, Some(link))?,
            sent: BTreeMap::new(),
        })
    }

    /// Sends a request to the host of this number in the network.
    fn send(&mut self, expected: Expected, host: usize) {
        let (network, source) = expected;
        let Some(target) = network.iter().nth(host) else {
            return;
        };
        let content = random();
        self.sent.insert(content, (target, expected));
        let socket = match source {
            Source::Pods => &self.pods,
            Source::Node => &self.node,
        };
        let message = request(target, content);
        let target = SockaddrStorage::from(SocketAddr::new(target, 0));
        // An error counts as a missing answer.
        sendto(socket.as_raw_fd(), &message, &target, MsgFlags::empty()).ok();
    }

    /// Removes from `open` what was answered.
    fn receive(&self, open: &mut BTreeSet<Expected>) {
        for socket in [&self.any, &self.node] {
            // A flood of packets does not hold it.
            let received = (0..MOST).map_while(|_| received(socket).ok());
            for (answer, from) in received {
                let request = answer.and_then(|it| self.sent.get(&it));
                if let Some((_, expected)) = request.filter(|it| from == Some(it.0)) {
                    open.remove(expected);
                }
            }
        }
    }

    /// Waits for an answer, or less long if a signal arrives.
    fn wait(&self, longest: Duration) {
        let mut sockets =
            [&self.any, &self.node].map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN));
        let longest = PollTimeout::try_from(longest).unwrap_or(PollTimeout::ZERO);
        poll(&mut sockets, longest).ok();
    }
}

/// Returns a socket of ICMP with this address. Through the link alone, if one is given.
fn bound(address: IpAddr, link: Option<u32>) -> nix::Result<OwnedFd> {
    let (family, protocol) = if address.is_ipv4() {
        (AddressFamily::Inet, SockProtocol::Icmp)
    } else {
        (AddressFamily::Inet6, SockProtocol::IcmpV6)
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Raw, flags, protocol)?;
    if let Some(link) = link {
        let name = if_indextoname(link)?;
        let name = OsString::from(name.to_string_lossy().into_owned());
        setsockopt(&socket, BindToDevice, &name)?;
    }
    let address = SockaddrStorage::from(SocketAddr::new(address, 0));
    bind(socket.as_raw_fd(), &address)?;
    Ok(socket)
}

/// Returns an echo request (RFC 792, RFC 4443). Its identifier differs from those of others, so the
/// kernel tracks it as a connection of its own.
fn request(target: IpAddr, content: Content) -> Vec<u8> {
    let kind = if target.is_ipv4() { 8 } else { 128 };
    let [high, low, ..] = content;
    let message = |[first, second]: [u8; 2]| {
        let header = [kind, 0, first, second, high, low, 0, 0];
        [header, content].concat()
    };
    // The kernel computes that of IPv6.
    message(checksum(&message([0, 0])).to_be_bytes())
}

/// Returns the checksum of a message of even length (RFC 1071).
fn checksum(message: &[u8]) -> u16 {
    let words = message.as_chunks().0.iter();
    !words.fold(0, |sum: u16, word| {
        let (sum, is_carried) = sum.overflowing_add(u16::from_be_bytes(*word));
        sum + u16::from(is_carried)
    })
}

/// Reads a packet of ICMP. Returns the content if it answers an echo request, and its source.
fn received(socket: &OwnedFd) -> nix::Result<(Option<Content>, Option<IpAddr>)> {
    let mut buffer = [0; 128];
    let (length, from) = recvfrom::<SockaddrStorage>(socket.as_raw_fd(), &mut buffer)?;
    let from = from.and_then(|it| {
        let v4 = it.as_sockaddr_in().map(|it| SockaddrIn::ip(it).into());
        v4.or(it.as_sockaddr_in6().map(|it| SockaddrIn6::ip(it).into()))
    });
    // An error may quote a request, whose type is another one.
    let answer = match buffer.get(..length).and_then(|it| it.last_chunk::<16>()) {
        Some([0 | 129, 0, _, _, _, _, _, _, content @ ..]) => Some(*content),
        _ => None,
    };
    Ok((answer, from))
}

/// The random bytes of a request.
type Content = [u8; 8];

/// Returns bytes that nobody can guess.
fn random() -> Content {
    RandomState::new().build_hasher().finish().to_ne_bytes()
}

/// Most packets that are read from a socket before the time is looked at.
const MOST: usize = 1024;

/// The host of each attempt: the end of the tunnel, and the gateway of pods. A kernel whose bridge of pods
/// is older than its tunnel answers IPv6 from another address than the end of the tunnel, which is also the
/// bridge's anycast address.
const HOSTS: [usize; 3] = [0, 0, 1];

/// Longest wait for the answers to each attempt.
const PATIENCE: Duration = Duration::from_secs(1);
