//! Sends frames by a packet socket, for which a process in a sandbox needs `CAP_NET_RAW`.

use std::process::Command;
use std::thread;

use crate::place::Place;
use crate::traffic;

/// How a process sends frames through a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By a packet socket, through the qdisc of the link.
    Queued,
    /// By a packet socket, past the qdisc (`PACKET_QDISC_BYPASS`).
    Bypassing,
    /// As the virtual machine of this tap.
    Tap,
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
    (sender, link, way): (&(impl Place + Sync), &str, Way),
    (header, packet): (&Header<'_>, &[u8]),
    receiver: (&impl Place, &str),
    seconds: usize,
) -> Vec<f64> {
    let frame = header.digits() + &hexadecimal(packet);
    let index = sender.link(link)["ifindex"].to_string();
    let mut perl = Command::new("perl");
    let (frame, seconds_of) = (frame.as_str(), seconds.to_string());
    let bypasses = u8::from(way == Way::Bypassing).to_string();
    perl.args(match way {
        Way::Tap => ["-e", SEND_BY_TAP, link, frame, &seconds_of, ""],
        _ => ["-e", SEND, &index, frame, &seconds_of, &bypasses],
    });
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

/// Sends as a program that emulates the network card of a virtual machine.
const SEND_BY_TAP: &str = r#"
    my ($name, $frame, $seconds) = @ARGV;
    sysopen(my $tap, "/dev/net/tun", 2) or die "tun: $!";
    # TUNSETIFF, IFF_TAP | IFF_NO_PI
    ioctl($tap, 0x400454ca, pack("Z16 S x22", $name, 0x1002)) or die "tap: $!";
    my $bytes = pack("H*", $frame);
    for (my $end = time + 1 + $seconds; time < $end;) {
        syswrite($tap, $bytes) for 1 .. 50;
    }
"#;

/// Sends by a packet socket (`AF_PACKET`, `SOCK_RAW`). nix could build its address (`struct
/// sockaddr_ll`) only with unsafe code.
const SEND: &str = r#"
    my ($index, $frame, $seconds, $bypasses) = @ARGV;
    socket(my $socket, 17, 3, 0) or die "packet socket: $!";
    # SOL_PACKET, PACKET_QDISC_BYPASS
    setsockopt($socket, 263, 20, pack("i", $bypasses)) or die "bypass: $!";
    my ($to, $bytes) = (pack("S n i S C C x8", 17, 0, $index, 0, 0, 0), pack("H*", $frame));
    # Whole seconds, of which the first one may be short.
    for (my $end = time + 1 + $seconds; time < $end;) {
        send($socket, $bytes, 0, $to) for 1 .. 50;
    }
"#;
