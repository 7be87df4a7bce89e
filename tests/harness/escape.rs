//! Makes packets bypass the host's qdiscs, as root in a sandbox can.

use std::process::Command;
use std::thread;

use crate::place::Place;
use crate::traffic;

/// The link that replaces eth0 after [`evade`], with its address and MAC.
pub const INNER: &str = "inner";

/// Marks all packets that leave by eth0 as classified (`tc_skip_classify`), so the host's ingress
/// qdisc ignores them: an ifb marks the packets that it sends.
///
/// Another redirecting filter would clear the mark. So the filter applies to packets from a bridge
/// inside the sandbox, and the sandbox's address moves behind that bridge. `gateway` is the default
/// gateway.
pub fn evade(sandbox: &impl Place, gateway: &str) {
    let (mac, address) = (sandbox.mac("eth0"), sandbox.addresses("eth0").remove(0));
    for arguments in [
        "link add name trick type ifb",
        "link add name inner type veth peer name outer",
        "link add name bridge type bridge",
        "address flush dev eth0",
        "link set dev eth0 address 02:00:00:00:00:77",
        &format!("link set dev inner address {mac}"),
        "link set dev outer master bridge",
        "link set dev eth0 master bridge",
        "link set dev trick up",
        "link set dev outer up",
        "link set dev inner up",
        "link set dev bridge up",
        &format!("address add {address} dev inner"),
        &format!("route add default via {gateway}"),
    ] {
        sandbox.ip(arguments);
    }
    sandbox.tc("qdisc add dev eth0 clsact");
    sandbox.tc(
        "filter add dev eth0 egress protocol all u32 match u32 0 0 indev outer action mirred egress redirect dev trick",
    );
}

/// Header of an Ethernet frame.
#[derive(Debug, Clone, Copy)]
pub struct Header<'a> {
    /// Destination MAC, as `ip` prints it.
    pub to: &'a str,
    /// Source MAC.
    pub from: &'a str,
    /// `EtherType`s: any tags of VLAN 0 come before the last one.
    pub types: &'a [u16],
}

impl Header<'_> {
    fn digits(&self) -> String {
        let (last, tags) = self.types.split_last().unwrap();
        let tags = tags.iter().map(|tag| format!("{tag:04x}0000"));
        let tags: String = tags.collect();
        format!("{}{}{tags}{last:04x}", self.to, self.from).replace(':', "")
    }
}

/// Returns an IPv4 datagram of 1,400 bytes to port 9 of `to`.
pub fn datagram(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0x05, 0x78, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend([from, to].concat());
    let words = packet
        .chunks(2)
        .map(|it| u32::from(it[0]) << 8 | u32::from(it[1]));
    let sum: u32 = words.sum();
    let sum = !u16::try_from((sum >> 16) + (sum & 0xffff)).unwrap();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    // UDP length, and no checksum.
    packet.extend([0, 9, 0, 9, 0x05, 0x64, 0, 0]);
    packet.resize(1400, 0);
    packet
}

/// Sends such frames through `link` of `sender` as fast as possible. Returns the megabits that
/// arrived at the receiver's link in each second.
pub fn pour(
    (sender, link): (&(impl Place + Sync), &str),
    (header, packet): (&Header<'_>, &[u8]),
    receiver: (&impl Place, &str),
    seconds: usize,
) -> Vec<f64> {
    let frame = header.digits() + &hexadecimal(packet);
    let index = sender.link(link)["ifindex"].to_string();
    let mut perl = Command::new("perl");
    perl.args(["-e", SEND, &index, &frame, &seconds.to_string()]);
    thread::scope(|scope| {
        let send = || sender.enter(|| assert!(perl.status().unwrap().success()));
        let rates = traffic::arriving(
            receiver,
            |second| second < seconds,
            || {
                scope.spawn(send);
            },
        );
        rates.into_iter().map(|rate| rate / 1e6).collect()
    })
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// Sends by a packet socket (`AF_PACKET`, `SOCK_RAW`). nix could build its address (`struct
/// sockaddr_ll`) only with unsafe code.
const SEND: &str = r#"
    my ($index, $frame, $seconds) = @ARGV;
    socket(my $socket, 17, 3, 0) or die "packet socket: $!";
    my ($to, $bytes) = (pack("S n i S C C x8", 17, 0, $index, 0, 0, 0), pack("H*", $frame));
    # Whole seconds, of which the first one may be short.
    for (my $end = time + 1 + $seconds; time < $end;) {
        send($socket, $bytes, 0, $to) for 1 .. 50;
    }
"#;
