//! bandwidth beside a program at the host's end of the pair, in the qdisc `clsact`: there the eBPF
//! agents of network plugins attach. Its filter ends classification for every packet.

use std::thread;

use tests::limited::RoutedContainer;
use tests::traffic::{self, Flood};
use tests::{Host, Place as _};

/// Filters that match every packet and end its classification. The last one accepts like an eBPF
/// program, and counts nothing. Few kernels without modules have an action that counts and accepts,
/// so the first two copy packets to a link.
const FILTERS: [&[&str]; 3] = [
    &["u32", "match", "u32", "0", "0", MIRROR],
    &["bpf", "bytecode", "1,6 0 0 4294967295,", MIRROR],
    &["bpf", "direct-action", "bytecode", "1,6 0 0 0,"],
];

const MIRROR: &str = "action mirred egress mirror dev copies";

/// When the program attaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attached {
    BeforeAdd,
    AfterAdd,
}

/// Creates the qdisc, and for both directions the filter and a second one behind it.
fn attach(host: &Host, link: &str, filter: &[&str]) {
    host.tc(&format!("qdisc add dev {link} clsact"));
    for direction in DIRECTIONS {
        for (number, filter) in ["1", "2"].into_iter().zip([filter, FILTERS[0]]) {
            let mut words = vec!["filter", "add", "dev", link, direction];
            words.extend(["prio", number, "protocol", "all"]);
            for word in filter {
                match *word {
                    MIRROR => words.extend(MIRROR.split(' ')),
                    word => words.push(word),
                }
            }
            host.run("tc", &words);
        }
    }
}

/// Returns the packets that the filter of each direction has counted, and those of the one behind.
fn seen(host: &Host, link: &str) -> [[u64; 2]; 2] {
    DIRECTIONS.map(|direction| {
        let shown = host.tc(&format!("-statistics filter show dev {link} {direction}"));
        let (first, second) = shown.split_once("pref 2 ").unwrap();
        [first, second].map(|shown| {
            let counted = shown.split_once(" bytes ").map(|(_, after)| after);
            let number = counted.and_then(|it| it.split(' ').next());
            number.map_or(0, |it| it.parse().unwrap())
        })
    })
}

/// Returns the program's qdisc and filters, without their numbers.
fn program(host: &Host, link: &str) -> Vec<String> {
    let filters = DIRECTIONS.map(|it| host.tc(&format!("filter show dev {link} {it}")));
    let mut qdiscs = host.qdiscs(link);
    qdiscs.retain(|it| it["kind"] == "clsact");
    let qdiscs = qdiscs.into_iter().map(|it| it.to_string());
    qdiscs.chain(filters).collect()
}

/// Creates the link that copies of packets go to.
fn copies(host: &Host) {
    host.ip("link add copies type veth peer name lost");
    host.ip("link set copies up");
    host.ip("link set lost up");
}

/// Limits the container to 10 Mbit/s in both directions beside such a program.
fn limit(scene: &RoutedContainer, attached: Attached, filter: &[&str]) {
    let (host, link) = (&scene.host, scene.host_link());
    if attached == Attached::BeforeAdd {
        attach(host, link, filter);
    }
    let network = scene.limited(RATE);
    let result = network.add(&scene.a);
    if attached == Attached::AfterAdd {
        attach(host, link, filter);
        // A runtime may repeat ADD.
        network.add(&scene.a);
    }
    network.check(&scene.a, &result).ok();
}

#[test]
fn packets_below_the_limit_all_pass_and_the_program_stays() {
    let scene = RoutedContainer::new();
    let (host, link) = (&scene.host, scene.host_link());
    copies(host);
    for filter in FILTERS {
        for attached in [Attached::BeforeAdd, Attached::AfterAdd] {
            limit(&scene, attached, filter);
            let (before, attachment) = (seen(host, link), program(host, link));
            let echoes = [
                "-n",
                "-q",
                "-c",
                "100",
                "-i",
                "0.002",
                "-s",
                "400",
                "192.0.2.2",
            ];
            let told = scene.a.run("ping", &echoes);
            assert!(told.contains(" 100 received"), "{told}");
            let after = seen(host, link);
            for ([before, _], [after, behind]) in before.into_iter().zip(after) {
                // A few packets are not echoes, such as those of ARP.
                let expected = if filter.contains(&MIRROR) {
                    100..130
                } else {
                    0..1
                };
                assert!(expected.contains(&(after - before)), "{before} {after}");
                assert_eq!(behind, 0, "{filter:?}");
            }
            scene.limited(RATE).del(&scene.a);
            assert_eq!(program(host, link), attachment, "{attached:?} {filter:?}");
            host.tc(&format!("qdisc del dev {link} clsact"));
            host.tc(&format!("qdisc del dev {link} root"));
            scene.a.tc("qdisc del dev eth0 root");
        }
    }
}

/// Checks that floods in both directions at once keep to the limit after their first second, on
/// average, and reach it. A busy machine makes single seconds lower, and the next one higher.
#[track_caller]
fn expect_limits(scene: &RoutedContainer) {
    let (here, there) = ((&scene.a, "10.1.0.2"), (&scene.outside, "192.0.2.2"));
    let floods = thread::scope(|scope| {
        let from = scope.spawn(|| {
            let outside = (there.0, there.1, "outside");
            traffic::flood(Flood::Udp, here, outside, SECONDS)
        });
        let towards = traffic::flood(Flood::Udp, there, (here.0, here.1, "eth0"), SECONDS);
        [towards, from.join().unwrap()]
    });
    for rates in floods {
        let later = &rates[1..];
        let seconds = f64::from(u32::try_from(later.len()).unwrap());
        let average = later.iter().sum::<f64>() / seconds;
        let best = later.iter().copied().fold(0.0, f64::max);
        let limit = 10e6;
        assert!(average < limit * 1.05 && best > limit * 0.95, "{rates:?}");
    }
}

#[test]
fn limits_hold_beside_a_program_that_was_there_before() {
    let scene = RoutedContainer::new();
    copies(&scene.host);
    limit(&scene, Attached::BeforeAdd, FILTERS[2]);
    expect_limits(&scene);
}

#[test]
fn limits_hold_beside_a_program_that_comes_later() {
    let scene = RoutedContainer::new();
    copies(&scene.host);
    limit(&scene, Attached::AfterAdd, FILTERS[1]);
    expect_limits(&scene);
}

/// Bits per second.
const RATE: u64 = 10_000_000;

/// Length of a flood. The first second includes the burst.
const SECONDS: usize = 4;

/// The hooks of `clsact`: ingress is what the container sends.
const DIRECTIONS: [&str; 2] = ["ingress", "egress"];
