//! Programs that emulate the network card of a virtual machine, without privileges.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::{Chain, Host, Network, Place as _, Sandbox};

/// A program that has opened the eth0 of a sandbox, a tap link, until this is dropped. It has every
/// address of the network: it answers requests for its MAC and pings.
#[derive(Debug)]
pub struct Machine(Child);

/// How a program opens a tap link.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// User and group of the program. No user but root has capabilities.
    pub user: u32,
    /// How often it opens the link with `IFF_MULTI_QUEUE`; `None` for once without this flag.
    pub queues: Option<u32>,
}

impl Machine {
    /// Starts the program in the sandbox.
    ///
    /// # Errors
    /// The program's message, if it cannot open the link.
    pub fn start(host: &Host, a: &Sandbox, opening: Opening) -> Result<Self, String> {
        // The device file of this machine may belong to root alone. A user namespace makes none.
        let device = host.dir().join("tun").display().to_string();
        let make =
            format!("mknod -m 666 {device} c 10 200 2>/dev/null || ln -s /dev/net/tun {device}");
        host.sh(&format!("[ -e {device} ] || {make}"));
        let mut perl = Command::new("perl");
        let queues = opening.queues.map_or_else(String::new, |it| it.to_string());
        perl.args(["-e", PROGRAM, &device, &queues])
            .uid(opening.user)
            .gid(opening.user)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = a.enter(|| perl.spawn()).unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let machine = Self(child);
        if line == "open\n" {
            return Ok(machine);
        }
        Err(machine.complaint())
    }

    /// Starts the program as root, which may open every link.
    pub fn of_root(host: &Host, a: &Sandbox) -> Self {
        let opening = Opening {
            user: 0,
            queues: None,
        };
        Self::start(host, a, opening).unwrap()
    }

    /// Starts the program as root if the first plugin of the chain makes a tap link.
    pub fn behind(chain: &Chain<'_>, host: &Host, a: &Sandbox) -> Option<Self> {
        (chain.position("tap") == Some(0)).then(|| Self::of_root(host, a))
    }

    fn complaint(mut self) -> String {
        let mut text = String::new();
        let mut stderr = self.0.stderr.take().unwrap();
        stderr.read_to_string(&mut text).unwrap();
        text
    }
}

impl Host {
    /// Returns the network `pods` of `tap`, with IPv4 and a default route.
    pub fn tap(&self) -> Network<'_> {
        let ranges = json!([[{"subnet": "10.1.0.0/24"}]]);
        let network = self.single("tap").with("ipam.ranges", ranges);
        network.with("ipam.routes", json!([{"dst": "0.0.0.0/0"}]))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Answers ARP, neighbour solicitations and pings of both families. It ends when its link is gone.
const PROGRAM: &str = r#"
    my ($device, $count) = @ARGV;
    my ($mac, @queues) = ("\x02\0\0\0\0\x99");
    for (1 .. $count || 1) {
        sysopen(my $queue, $device, 2) or die "open: $!\n";
        # TUNSETIFF; IFF_TAP | IFF_NO_PI, IFF_MULTI_QUEUE
        my $flags = 0x1002 | ($count ? 0x100 : 0);
        ioctl($queue, 0x400454ca, pack("Z16 S x22", "eth0", $flags)) or die "attach: $!\n";
        push @queues, $queue;
    }
    $| = 1;
    print "open\n";
    sub checked {
        my ($pseudo, $icmp) = @_;
        substr($icmp, 2, 2) = "\0\0";
        my $sum = unpack("%32n*", $pseudo . $icmp . (length($icmp) % 2 ? "\0" : ""));
        $sum = ($sum & 0xffff) + ($sum >> 16) for 1, 2;
        substr($icmp, 2, 2) = pack("n", ~$sum & 0xffff);
        return $icmp;
    }
    sub answer {
        my ($type, $packet) = (unpack("n", substr($_[0], 12)), substr($_[0], 14));
        my ($head, $from, $to, $icmp) = unpack($type == 0x800 ? "a12 a4 a4 a*" : "a8 a16 a16 a*", $packet);
        my $kind = ord($icmp);
        if ($type == 0x806) {
            my ($operation, $asker, $address, $wanted) = unpack("x6 n a6 a4 x6 a4", $packet);
            return if $operation != 1 || $address eq $wanted;
            return pack("n n C C n", 1, 0x800, 6, 4, 2) . $mac . $wanted . $asker . $address;
        }
        if ($type == 0x800) {
            return if ord(substr($packet, 9)) != 1 || $kind != 8;
            return $head . $to . $from . checked("", "\0" . substr($icmp, 1));
        }
        return if $type != 0x86dd || ord(substr($packet, 6)) != 58;
        my $reply = $kind == 128 ? chr(129) . substr($icmp, 1) : undef;
        if ($kind == 135 && $from ne "\0" x 16) {
            $to = substr($icmp, 8, 16);
            $reply = pack("C C n N", 136, 0, 0, 0x60000000) . $to . "\x02\x01" . $mac;
        }
        return unless defined $reply;
        my $pseudo = $to . $from . pack("N N", length($reply), 58);
        return pack("N n C C", 0x60000000, length($reply), 58, 255) . $to . $from . checked($pseudo, $reply);
    }
    while (1) {
        my $waiting = "";
        vec($waiting, fileno($_), 1) = 1 for @queues;
        select(my $ready = $waiting, undef, undef, undef);
        for my $queue (grep { vec($ready, fileno($_), 1) } @queues) {
            sysread($queue, my $frame, 2000) or exit;
            my $packet = answer($frame);
            syswrite($queue, substr($frame, 6, 6) . $mac . substr($frame, 12, 2) . $packet) if defined $packet;
        }
    }
"#;
