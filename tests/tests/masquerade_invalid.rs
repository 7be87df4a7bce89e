//! bridge and ptp: packets that conntrack can assign to no connection do not leave with a
//! container's address.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6,
    SockaddrStorage, recvfrom, sendto, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use serde_json::{Value, json};
use tests::traffic::tcp;
use tests::{Host, Network, Place, Sandbox};

/// A raw socket for TCP segments of one IP version.
struct Raw(OwnedFd);

impl Raw {
    fn open(place: &impl Place, version: IpAddr) -> Self {
        let family = match version {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_CLOEXEC;
        let open = || socket(family, SockType::Raw, flags, SockProtocol::Tcp).unwrap();
        let socket = place.enter(open);
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(5)).unwrap();
        Self(socket)
    }

    /// Sends an answer (SYN, ACK) to a connection that does not exist.
    fn answer(&self, to: IpAddr) {
        let mut segment = [0; 20];
        segment[2..4].copy_from_slice(&9_u16.to_be_bytes());
        (segment[12], segment[13]) = (5 << 4, 0x12);
        let (socket, none) = (self.0.as_raw_fd(), MsgFlags::empty());
        let sent = match SocketAddr::new(to, 0) {
            SocketAddr::V4(to) => sendto(socket, &segment, &SockaddrIn::from(to), none),
            SocketAddr::V6(to) => sendto(socket, &segment, &SockaddrIn6::from(to), none),
        };
        assert_eq!(sent, Ok(segment.len()));
    }

    /// Returns the source address of the next segment.
    fn next(&self) -> IpAddr {
        let received = recvfrom::<SockaddrStorage>(self.0.as_raw_fd(), &mut [0; 1500]);
        let (_, from) = received.unwrap();
        let from = from.unwrap();
        let v6 = || from.as_sockaddr_in6().unwrap().ip().into();
        from.as_sockaddr_in().map_or_else(v6, |it| it.ip().into())
    }
}

/// Sends an invalid segment from `pod`, and then opens a connection. Returns the source address of
/// the first segment that `to` sees.
fn first_source(pod: &Sandbox, to: &impl Place, address: &str) -> IpAddr {
    let version = address.parse().unwrap();
    let [sending, hearing] = [Raw::open(pod, version), Raw::open(to, version)];
    sending.answer(version);
    tcp(pod, to, address);
    hearing.next()
}

fn networks(host: &Host) -> [Network<'_>; 2] {
    let bridge = host.bridge().with("isDefaultGateway", true);
    [bridge, host.ptp()].map(|it| it.with("ipMasq", true))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn invalid_packets_do_not_leave_with_a_pods_address() {
    for plugin in 0..2 {
        let host = Host::new();
        let outside = host.outside_of_both_families();
        let network = &networks(&host)[plugin];
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let result = network.add(&a);
        network.add(&b);
        assert_eq!(first_source(&a, &outside, "192.0.2.2"), ip("192.0.2.1"));
        assert_eq!(first_source(&a, &outside, "2001:db8::2"), ip("2001:db8::1"));
        assert_eq!(first_source(&a, &b, "10.1.0.3"), ip("10.1.0.2"));
        assert_eq!(first_source(&a, &b, "fd00:1::3"), ip("fd00:1::2"));
        assert_eq!(first_source(&a, &host, "10.1.0.1"), ip("10.1.0.2"));
        assert_eq!(network.check(&a, &result).ok(), Value::Null);
        network.del(&a);
        assert!(host.rules_from("inet cni-masquerade").contains("ct state"));
        network.del(&b);
        let rules = host.rules_from("inet cni-masquerade");
        assert!(!rules.contains("-base"), "{rules}");
    }
}

#[test]
fn invalid_packets_to_an_exempt_network_pass() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let a = host.sandbox("a");
    let [network, _] = networks(&host);
    let exempt = network.with("nonMasqueradeCIDRs", json!(["192.0.2.0/24"]));
    exempt.add(&a);
    assert_eq!(first_source(&a, &outside, "192.0.2.2"), ip("10.1.0.2"));
    assert_eq!(first_source(&a, &outside, "2001:db8::2"), ip("2001:db8::1"));
}

/// The chain of another release has other comments, and there is no chain for invalid packets.
#[test]
fn table_of_an_earlier_release_gets_the_chain_by_add_and_reload() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let [network, _] = networks(&host);
    let result = network.add(&a);
    let reload = network.clone().with("prevResult", result.clone());
    for upgrade in [reload.on("RELOAD", &a), network.on("ADD", &b)] {
        age(&host);
        assert_eq!(first_source(&a, &outside, "192.0.2.2"), ip("10.1.0.2"));
        assert_eq!(network.check(&a, &result).ok(), Value::Null);
        upgrade.run().ok();
        assert_eq!(first_source(&a, &outside, "192.0.2.2"), ip("192.0.2.1"));
        assert_eq!(network.check(&a, &result).ok(), Value::Null);
    }
}

/// Makes the table of masquerading that of an earlier release.
fn age(host: &Host) {
    let rules = host.rules_from("inet cni-masquerade");
    let start = rules[..rules.find("-base {").unwrap()]
        .rfind("chain ")
        .unwrap();
    let end = start + rules[start..].find("\n\t}").unwrap() + 3;
    let aged = rules[..start].to_owned() + &rules[end..];
    let aged = aged.replace("keeps its address", "stays as it is");
    let file = host.dir().join("aged");
    let whole = format!("delete table inet cni-masquerade\n{aged}");
    std::fs::write(&file, whole).unwrap();
    host.run("nft", &["-f", file.to_str().unwrap()]);
}
