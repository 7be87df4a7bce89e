//! Sends packets directly to other nodes, and waits for answers.
//!
//! The datagrams go to the end of the other node's tunnel, to a port that no program uses, so the kernel
//! there answers with an ICMP error. The error quotes the datagram, so only a host that has seen it can
//! send the error.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use cluster::{DirectRoute, Tunnel};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc::sock_extended_err;
use nix::net::if_::if_indextoname;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{BindToDevice, Ipv4RecvErr, Ipv6RecvErr, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrIn, SockaddrIn6,
    SockaddrStorage, bind, getsockname, recvmsg, sendto, setsockopt, sockaddr_in6, socket,
};

/// Returns those of the routes by which packets of pods pass in both directions. All `routes` use the
/// same link and have the family of `tunnel`. Takes at most [`TRIES`] × [`PATIENCE`].
///
/// # Errors
/// The link or the tunnel's address does not exist.
pub(super) fn passing(
    routes: &BTreeSet<DirectRoute>,
    tunnel: &Tunnel,
    link: u32,
) -> nix::Result<BTreeSet<DirectRoute>> {
    let mut probe = Probe::open(tunnel, link)?;
    let targets = routes.iter().map(|it| it.network.network());
    let mut open: BTreeSet<_> = targets
        .flat_map(|it| SOURCES.map(|from| (it, from)))
        .collect();
    for _ in 0..TRIES {
        let start = Instant::now();
        for expected in open.clone() {
            probe.send(expected);
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
    let is_open = |target: IpAddr| open.iter().any(|it| it.0 == target);
    let passing = routes.iter().filter(|it| !is_open(it.network.network()));
    Ok(passing.copied().collect())
}

/// The source of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    /// The address of the tunnel's end, which is in this node's pod CIDR. The answer comes on any way.
    Pods,
    /// The node's own address. The answer, whose source is in the other node's pod CIDR, comes directly.
    Node,
}

const SOURCES: [Source; 2] = [Source::Pods, Source::Node];

/// Datagrams on their way to nodes in the network of one link.
struct Probe {
    /// Sends from the tunnel's address through the link.
    pods: OwnedFd,
    /// Has the same address and port, and receives answers through other links.
    any: OwnedFd,
    /// Sends from the node's address through the link.
    node: OwnedFd,
    /// The destination and source of each datagram, by its content.
    sent: BTreeMap<[u8; 8], (IpAddr, Source)>,
}

impl Probe {
    fn open(tunnel: &Tunnel, link: u32) -> nix::Result<Self> {
        let any = bound(SocketAddr::new(tunnel.address, 0), None)?;
        let name: SockaddrStorage = getsockname(any.as_raw_fd())?;
        let port = name.as_sockaddr_in().map(SockaddrIn::port);
        let port = port.or(name.as_sockaddr_in6().map(SockaddrIn6::port));
        let pods = SocketAddr::new(tunnel.address, port.unwrap_or_default());
        Ok(Self {
            any,
            pods: bound(pods, Some(link))?,
            node: bound(SocketAddr::new(tunnel.local, 0), Some(link))?,
            sent: BTreeMap::new(),
        })
    }

    fn send(&mut self, (target, source): (IpAddr, Source)) {
        let content = random();
        self.sent.insert(content, (target, source));
        let socket = match source {
            Source::Pods => &self.pods,
            Source::Node => &self.node,
        };
        let target = SockaddrStorage::from(SocketAddr::new(target, DISCARD));
        // Each error counts as a missing answer. The first one may be the answer to another datagram.
        let send = || {
            sendto(
                socket.as_raw_fd(),
                &content,
                &target,
                MsgFlags::MSG_DONTWAIT,
            )
        };
        send().or_else(|_| send()).ok();
    }

    /// Removes from `open` what was answered.
    fn receive(&self, open: &mut BTreeSet<(IpAddr, Source)>) {
        for socket in [&self.pods, &self.any, &self.node] {
            while let Ok((content, from)) = answer(socket) {
                let expected = self.sent.get(&content);
                // This node's own firewall answers from another address.
                if let Some(expected) = expected.filter(|it| from == Some(it.0)) {
                    open.remove(expected);
                }
            }
        }
    }

    /// Waits for an answer, or less long if a signal arrives.
    fn wait(&self, longest: Duration) {
        let all = [&self.pods, &self.any, &self.node];
        // The kernel reports an error also if nothing is asked for.
        let mut sockets = all.map(|it| PollFd::new(it.as_fd(), PollFlags::empty()));
        let longest = PollTimeout::try_from(longest).unwrap_or(PollTimeout::ZERO);
        poll(&mut sockets, longest).ok();
    }
}

/// Returns a socket with this address that keeps ICMP errors. Through the link alone, if one is given.
fn bound(address: SocketAddr, link: Option<u32>) -> nix::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, ReuseAddr, &true)?;
    if address.is_ipv4() {
        setsockopt(&socket, Ipv4RecvErr, &true)?;
    } else {
        setsockopt(&socket, Ipv6RecvErr, &true)?;
    }
    if let Some(link) = link {
        let name = if_indextoname(link)?;
        let name = OsString::from(name.to_string_lossy().into_owned());
        setsockopt(&socket, BindToDevice, &name)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(socket)
}

/// Reads an ICMP error from the socket: that no program uses the port. Returns the content of the
/// datagram and the address of the host that sent the error; `None` if it is another error.
fn answer(socket: &OwnedFd) -> nix::Result<([u8; 8], Option<IpAddr>)> {
    let mut content = [0; 8];
    let mut buffer = [IoSliceMut::new(&mut content)];
    let mut control = cmsg_space!(sock_extended_err, sockaddr_in6);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut buffer, Some(&mut control), flags)?;
    let from = message.cmsgs()?.find_map(|it| {
        let (error, from) = match it {
            ControlMessageOwned::Ipv4RecvErr(error, from) => {
                (error, IpAddr::from(from?.sin_addr.s_addr.to_ne_bytes()))
            }
            ControlMessageOwned::Ipv6RecvErr(error, from) => {
                (error, IpAddr::from(from?.sin6_addr.s6_addr))
            }
            _ => return None,
        };
        let is_answer = Errno::from_raw(error.ee_errno.cast_signed()) == Errno::ECONNREFUSED;
        is_answer.then_some(from)
    });
    Ok((content, from))
}

/// Returns bytes that nobody can guess.
fn random() -> [u8; 8] {
    RandomState::new().build_hasher().finish().to_ne_bytes()
}

/// The port that no host uses, as in `cnitool doctor`.
const DISCARD: u16 = 9;

/// Number of attempts, and longest wait for the answers to each.
const TRIES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(1);
