//! Traffic through a limit, second by second: iperf3 between a container and another host.
//!
//! The first second starts with the first packet. Bytes are those of the receiver's interface with
//! all headers. A segment that arrives in one piece has only one header.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Host, Place, Sandbox, eventually};

use crate::limits::{CONTAINERD, bridge, limits};
use crate::report::Report;
use crate::timing::{Call, Side};

/// One run of iperf3.
#[derive(Clone, Copy)]
struct Run {
    rate: u64,
    mtu: u32,
    is_ingress: bool,
    is_tcp: bool,
    is_ipv6: bool,
}

/// Result of a run, in percent of the rate.
struct Outcome {
    /// Bytes of each second.
    seconds: Vec<f64>,
    /// TCP payload of the whole run.
    goodput: Option<f64>,
}

/// Measures every rate on both sides, and jumbo frames and lower rates on our side.
pub fn run(host: &Host, [ours, reference]: &[Side; 2], report: &mut Report) {
    let mut rows = Vec::new();
    let outside = other_host(host);
    println!(
        "\nwhat passes a limit, percent of it in each second; and payload of TCP in {SECONDS} s\n"
    );
    println!(
        "{:>9} {:>5} {:8}{:4} {:5}{:^36} {:>5}  {:^36} {:>5}",
        "bit/s", "MTU", "", "", "", "ours", "TCP", "reference", "TCP"
    );
    for (rates, mtu) in [
        (USUAL.as_slice(), 1500),
        (&LOW, 1500),
        (&[10_000_000], 9000),
    ] {
        for run in rates.iter().flat_map(|rate| runs(*rate, mtu)) {
            host.ip(&format!("link set uplink mtu {mtu}"));
            outside.ip(&format!("link set outside mtu {mtu}"));
            let is_compared = USUAL.contains(&run.rate) && mtu == 1500;
            let ours = run.take(host, ours, &outside);
            let reference = is_compared.then(|| run.take(host, reference, &outside));
            let label = run.label();
            rows.push(json!({
                "case": label,
                "ours": ours.to_json(),
                "reference": reference.as_ref().map(Outcome::to_json),
            }));
            let reference = reference.map(|it| it.columns()).unwrap_or_default();
            println!("{label}{}  {reference}", ours.columns());
        }
    }
    report.values("what passes a limit", "percent", &rows);
}

/// Returns runs for both directions, protocols and families. IPv4 runs use containerd's burst, IPv6
/// runs CRI-O's.
fn runs(rate: u64, mtu: u32) -> impl Iterator<Item = Run> {
    (0..8).map(move |bits| Run {
        rate,
        mtu,
        is_ingress: bits & 4 == 0,
        is_tcp: bits & 2 == 0,
        is_ipv6: bits & 1 != 0,
    })
}

fn other_host(host: &Host) -> Sandbox {
    let outside = host.outside();
    host.ip("address add 2001:db8::1/64 dev uplink nodad");
    outside.ip("address add 2001:db8::2/64 dev outside nodad");
    outside.ip("route add default via 192.0.2.1");
    outside.ip("route add default via 2001:db8::1");
    outside
}

impl Run {
    fn label(self) -> String {
        let Self { rate, mtu, .. } = self;
        let direction = if self.is_ingress { "ingress" } else { "egress" };
        let protocol = if self.is_tcp { "TCP" } else { "UDP" };
        let family = if self.is_ipv6 { "IPv6" } else { "IPv4" };
        format!("{rate:>9} {mtu:>5} {direction:8}{protocol:4} {family:5}")
    }

    /// Runs in a new container, whose bucket is full.
    fn take(self, host: &Host, side: &Side, outside: &Sandbox) -> Outcome {
        let name = format!(
            "t-{}-{}",
            side.name,
            fs::read_dir("/run/netns").unwrap().count()
        );
        let a = host.sandbox(&name);
        let (subnet, far, burst) = if self.is_ipv6 {
            ("fd00:203::/64", "2001:db8::2", CRI_O)
        } else {
            ("10.203.0.0/16", "192.0.2.2", CONTAINERD)
        };
        let network = bridge(
            &format!("t{}", if self.is_ipv6 { 6 } else { 4 }),
            subnet,
            self.mtu,
        );
        let (result, _) = side.run(&Call::of(&a, "bridge", "ADD"), &network);
        let added = limits(self.rate, burst, &result);
        side.run(&Call::of(&a, "bandwidth", "ADD"), &added);
        let result: Value = serde_json::from_slice(&result).unwrap();
        let near = result["ips"][0]["address"].as_str().unwrap();
        let near = near.split('/').next().unwrap();
        let outcome = if self.is_ingress {
            self.measure((outside, far), (&a, near, "eth0"))
        } else {
            self.measure((&a, near), (outside, far, "outside"))
        };
        side.run(&Call::of(&a, "bandwidth", "DEL"), &added);
        side.run(&Call::of(&a, "bridge", "DEL"), &network);
        outcome
    }

    fn measure(
        self,
        (client, source): (&Sandbox, &str),
        (server, address, link): (&Sandbox, &str, &str),
    ) -> Outcome {
        let listen = ["-s", "-1", "-B", address].map(str::to_owned);
        let mut serving = iperf3(server, &listen, Stdio::null());
        assert!(
            eventually(|| is_listening(server)),
            "iperf3 does not listen"
        );
        let time = (SECONDS + 1).to_string();
        let target = ["-c", address, "-B", source, "-J", "-t", &time];
        let mut words: Vec<_> = target.map(str::to_owned).into();
        if !self.is_tcp {
            let twice = (2 * self.rate).to_string();
            words.extend(["-u", "-l", "1400", "-b", &twice].map(str::to_owned));
        }
        let before = received(server, link);
        let sending = iperf3(client, &words, Stdio::piped());
        let seconds = seconds(|| received(server, link) - before);
        let report = sending.wait_with_output().unwrap();
        serving.wait().unwrap();
        let report: Value = serde_json::from_slice(&report.stdout).unwrap();
        let goodput = report["end"]["sum_received"]["bits_per_second"].as_f64();
        let percent = |bits: f64| bits * 100.0 / f64::from(u32::try_from(self.rate).unwrap());
        Outcome {
            seconds: seconds.into_iter().map(percent).collect(),
            goodput: goodput.filter(|_| self.is_tcp).map(percent),
        }
    }
}

impl Outcome {
    fn to_json(&self) -> Value {
        json!({"seconds": self.seconds, "goodput": self.goodput})
    }

    fn columns(&self) -> String {
        let seconds = self.seconds.iter().map(|it| format!("{it:>7.1}"));
        let seconds: String = seconds.collect();
        let goodput = self.goodput.map(|it| format!("{it:.1}"));
        format!("{seconds:36} {:>5}", goodput.unwrap_or_default())
    }
}

/// Returns the bits of each second, starting with the first packet that is larger than iperf3's
/// control messages.
fn seconds(received: impl Fn() -> u64) -> Vec<f64> {
    assert!(eventually(|| received() > PREAMBLE), "nothing arrives");
    let (start, mut last) = (Instant::now(), (received(), Instant::now()));
    let second = |number: u64| {
        let end = start + Duration::from_secs(number);
        while let Some(rest) = end.checked_duration_since(Instant::now()) {
            thread::park_timeout(rest);
        }
        let now = (received(), Instant::now());
        let bytes = u32::try_from(now.0 - last.0).unwrap();
        let rate = f64::from(bytes) * 8.0 / (now.1 - last.1).as_secs_f64();
        last = now;
        rate
    };
    (1..=SECONDS).map(second).collect()
}

fn iperf3(place: &Sandbox, words: &[String], stdout: Stdio) -> Child {
    let mut iperf3 = Command::new("iperf3");
    iperf3.args(words).stdout(stdout).stderr(Stdio::null());
    place.enter(|| iperf3.spawn().expect("iperf3: apt-get install iperf3"))
}

fn is_listening(place: &Sandbox) -> bool {
    let sockets = |file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let tables = place.enter(|| [sockets("tcp"), sockets("tcp6")]);
    // Port 5201 in state LISTEN.
    let is_it = |line: &str| line.contains(":1451 ") && line.contains(" 0A ");
    tables.iter().flat_map(|table| table.lines()).any(is_it)
}

/// Returns the bytes that a link has received, without starting a program.
fn received(place: &Sandbox, link: &str) -> u64 {
    let links = place.enter(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let (_, counters) = links.split_once(&format!("{link}:")).unwrap();
    counters.split_whitespace().next().unwrap().parse().unwrap()
}

const USUAL: [u64; 4] = [1_000_000, 10_000_000, 100_000_000, 500_000_000];
const LOW: [u64; 2] = [100_000, 500_000];

/// Measured seconds; iperf3 sends one more.
const SECONDS: u64 = 5;

/// Bytes that iperf3 sends before the test.
const PREAMBLE: u64 = 2500;

/// Bits that CRI-O sends for an unset burst.
const CRI_O: u64 = 34_359_738_359;
