//! Router advertisements of a rogue container, and their traces on a host that accepts them.
//!
//! Each value differs from all defaults, so traces are recognized by their values.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nix::sys::socket::sockopt::{BindToDevice, Ipv6MulticastHops};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendto, setsockopt,
    socket,
};

use crate::place::Place;

/// The advertised prefix of 64 bits, as `ip` prints it.
pub const PREFIX: &str = "2001:db8:bad:";

/// Sends advertisements through `link` while it is up and `work` runs.
///
/// The link may come and go meanwhile. [`sent`] shows that advertisements left, [`heard`] that they
/// arrived.
pub fn flooded<T>(place: &(impl Place + Sync), link: &str, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        // Dropping this, even by a panic in `work`, ends the flood.
        let (end, ended) = channel::<()>();
        scope.spawn(move || place.enter(move || flood(link, &ended)));
        let outcome = work();
        drop(end);
        outcome
    })
}

fn flood(link: &str, ended: &Receiver<()>) {
    let mut router = None;
    while ended.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
        let sent = match &router {
            Some(socket) => advertise(socket),
            None => open(link).map(|socket| router = Some(socket)),
        };
        // A recreated link is another one, to which the socket is not bound.
        if sent.is_err() {
            router = None;
        }
    }
}

/// Returns how many router advertisements the kernel received from `link`, accepted or not.
pub fn heard(place: &impl Place, link: &str) -> u64 {
    counter(place, link, "Icmp6InType134")
}

/// Returns how many router advertisements left through `link`.
pub fn sent(place: &impl Place, link: &str) -> u64 {
    counter(place, link, "Icmp6OutType134")
}

/// Returns a counter; the kernel lists neither zero counters nor absent links.
fn counter(place: &impl Place, link: &str, name: &str) -> u64 {
    let file = format!("/proc/thread-self/net/dev_snmp6/{link}");
    let counters = place.enter(|| fs::read_to_string(file)).unwrap_or_default();
    let count = counters.lines().find_map(|line| {
        let (counted, count) = line.split_once(char::is_whitespace)?;
        (counted == name).then(|| count.trim().parse().unwrap())
    });
    count.unwrap_or_default()
}

/// Returns what `place` accepted of the advertisements: routes, addresses and sysctls.
pub fn traces(place: &impl Place) -> Vec<String> {
    let routes = place.ip("-6 -oneline route show table all");
    let addresses = place.ip("-6 -oneline address show");
    let lines = routes.lines().chain(addresses.lines());
    let is_trace = |line: &&str| line.contains("proto ra") || line.contains(PREFIX);
    let mut traces: Vec<_> = lines.filter(is_trace).map(str::to_owned).collect();
    traces.extend(place.enter(changed_sysctls));
    traces
}

/// Returns the changed sysctls of all links.
fn changed_sysctls() -> Vec<String> {
    let marks = [
        ("conf", "hop_limit", u32::from(HOP_LIMIT)),
        ("conf", "mtu", MTU),
        ("neigh", "base_reachable_time_ms", REACHABLE_TIME),
        ("neigh", "retrans_time_ms", RETRANS_TIMER),
    ];
    let changed = marks.into_iter().flat_map(|(group, key, mark)| {
        let links = fs::read_dir(format!("/proc/sys/net/ipv6/{group}")).unwrap();
        let sysctls = links.map(move |link| link.unwrap().path().join(key));
        sysctls.filter_map(move |path| {
            // The link may have been deleted meanwhile.
            let value = fs::read_to_string(&path).unwrap_or_default();
            let is_trace = value.trim_end() == mark.to_string();
            is_trace.then(|| format!("{} is {mark}", path.display()))
        })
    });
    changed.collect()
}

/// Opens a raw socket on `link`; the kernel computes the checksum.
fn open(link: &str) -> nix::Result<OwnedFd> {
    let (family, raw) = (AddressFamily::Inet6, SockType::Raw);
    let socket = socket(family, raw, SockFlag::SOCK_CLOEXEC, SockProtocol::IcmpV6)?;
    setsockopt(&socket, BindToDevice, &OsString::from(link))?;
    // Receivers require 255, which no forwarded packet has (RFC 4861, section 6.1.2).
    setsockopt(&socket, Ipv6MulticastHops, &255)?;
    Ok(socket)
}

fn advertise(router: &OwnedFd) -> nix::Result<()> {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let all_nodes = SockaddrIn6::from(SocketAddrV6::new(all_nodes, 0, 0, 0));
    let (message, none) = (message(), MsgFlags::empty());
    sendto(router.as_raw_fd(), &message, &all_nodes, none).map(drop)
}

/// Returns a router advertisement with an MTU option and a prefix for on-link and autonomous
/// configuration (RFC 4861, sections 4.2, 4.6.2 and 4.6.4).
fn message() -> Vec<u8> {
    const ROUTER_ADVERTISEMENT: u8 = 134;
    const MTU_OPTION: u8 = 5;
    const PREFIX_INFORMATION: u8 = 3;
    const ON_LINK_AND_AUTONOMOUS: u8 = 0xc0;
    let prefix: Ipv6Addr = format!("{PREFIX}:").parse().unwrap();
    let (router_lifetime, valid, preferred) = (1800_u16, 86_400_u32, 14_400_u32);
    [
        // Type, code and checksum.
        &[ROUTER_ADVERTISEMENT, 0, 0, 0][..],
        // No DHCP.
        &[HOP_LIMIT, 0],
        &router_lifetime.to_be_bytes(),
        &REACHABLE_TIME.to_be_bytes(),
        &RETRANS_TIMER.to_be_bytes(),
        // Options contain their length in units of eight bytes.
        &[MTU_OPTION, 1, 0, 0],
        &MTU.to_be_bytes(),
        &[PREFIX_INFORMATION, 4, 64, ON_LINK_AND_AUTONOMOUS],
        &valid.to_be_bytes(),
        &preferred.to_be_bytes(),
        &[0; 4],
        &prefix.octets(),
    ]
    .concat()
}

/// Hop limit of packets that hosts send afterwards.
const HOP_LIMIT: u8 = 42;

/// Bytes.
const MTU: u32 = 1281;

/// Milliseconds.
const REACHABLE_TIME: u32 = 12_000;

/// Milliseconds.
const RETRANS_TIMER: u32 = 2000;

/// Pause between advertisements: thousands per second, with some time for other programs.
const PAUSE: Duration = Duration::from_micros(50);
