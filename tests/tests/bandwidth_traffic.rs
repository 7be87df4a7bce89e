//! bandwidth: traffic through the limits, measured by the receiving interface's counters.

use serde_json::{Value, json};
use tests::traffic::{self, Flood};
use tests::{Host, Network, Place, Sandbox};

/// A container on the bridge, and another host that reaches it through this one.
struct Scene {
    host: Host,
    a: Sandbox,
    outside: Sandbox,
    result: Value,
}

/// Towards the container, and from it.
#[derive(Debug, Clone, Copy)]
enum Direction {
    Ingress,
    Egress,
}

impl Scene {
    fn new() -> Self {
        Self::with_mtu(1500)
    }

    fn with_mtu(mtu: u32) -> Self {
        let host = Host::new();
        let (outside, a) = (host.outside(), host.sandbox("a"));
        for address in ["198.51.100.2/24", "2001:db8::2/64", "2001:db8:1::2/64"] {
            outside.ip(&format!("address add {address} dev outside"));
        }
        for address in ["198.51.100.1/24", "2001:db8::1/64", "2001:db8:1::1/64"] {
            host.ip(&format!("address add {address} dev uplink"));
        }
        outside.ip("route add default via 192.0.2.1");
        outside.ip("route add default via 2001:db8::1");
        let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        let bridge = host.bridge().with("ipam.routes", routes);
        let result = bridge.with("mtu", mtu).add(&a);
        host.ip(&format!("link set uplink mtu {mtu}"));
        outside.ip(&format!("link set outside mtu {mtu}"));
        Self {
            host,
            a,
            outside,
            result,
        }
    }

    fn bandwidth(&self) -> Network<'_> {
        let network = self.host.bandwidth();
        network.with("prevResult", self.result.clone())
    }

    /// Returns the same rate for both directions, with the runtimes' values for unset bursts.
    fn limited(&self, rate: u64) -> Network<'_> {
        let limits = json!({
            "ingressRate": rate, "ingressBurst": CONTAINERD,
            "egressRate": rate, "egressBurst": CRI_O,
        });
        self.bandwidth().with("runtimeConfig.bandwidth", limits)
    }

    /// Returns the megabits that arrive in each second. `far` is the other host's address.
    fn flood(&self, direction: Direction, (flood, far): (Flood, &str), seconds: usize) -> Vec<f64> {
        let near = if far.contains(':') {
            "fd00:1::2"
        } else {
            "10.1.0.2"
        };
        let (a, outside) = (&self.a, &self.outside);
        let rates = match direction {
            Direction::Ingress => traffic::flood(flood, (outside, far), (a, near, "eth0"), seconds),
            Direction::Egress => {
                traffic::flood(flood, (a, near), (outside, far, "outside"), seconds)
            }
        };
        rates.into_iter().map(|rate| rate / 1e6).collect()
    }

    /// Checks that no second exceeds the rate and most of it arrives on average, even on a loaded
    /// machine.
    #[track_caller]
    fn expect_rate(&self, direction: Direction, stream: (Flood, &str), rate: f64) {
        let rates = self.flood(direction, stream, 2);
        let told = format!("{direction:?} {stream:?}: {rates:?} of {rate} Mbit/s");
        assert!(rates.iter().all(|it| *it < rate * 1.15), "{told}");
        let mean = rates.iter().sum::<f64>() / 2.0;
        assert!(mean > rate * 0.6, "{told}");
    }

    #[track_caller]
    fn expect_free(&self, direction: Direction, far: &str) {
        let rates = self.flood(direction, (Flood::Tcp, far), 1);
        assert!(rates[0] > FREE, "{direction:?} {far}: {rates:?}");
    }
}

/// Values that runtimes send for an unset burst.
const CONTAINERD: u64 = 4_294_967_295;
const CRI_O: u64 = 34_359_738_359;

const BOTH: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// Addresses of the other host.
const FAR: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
const OTHER: [&str; 2] = ["198.51.100.2", "2001:db8:1::2"];

/// Megabits per second that no limit of these tests allows and every machine reaches.
const FREE: f64 = 40.0;

#[test]
fn rate_is_kept_from_the_first_second_on() {
    let scene = Scene::new();
    scene.limited(10_000_000).add(&scene.a);
    for direction in BOTH {
        scene.expect_rate(direction, (Flood::Tcp, FAR[0]), 10.0);
        scene.expect_rate(direction, (Flood::Udp, FAR[1]), 10.0);
    }
}

#[test]
fn rate_is_kept_whatever_the_container_does_to_its_link() {
    let scene = Scene::new();
    scene.limited(10_000_000).add(&scene.a);
    for mischief in [
        "link set eth0 txqueuelen 100000",
        "link set eth0 mtu 65535",
        "link set eth0 gso_max_size 262144",
        "link set eth0 mtu 1500",
    ] {
        scene.a.ip(mischief);
    }
    scene.a.tc("qdisc add dev eth0 clsact");
    scene.expect_rate(Direction::Egress, (Flood::Tcp, FAR[0]), 10.0);
    scene.expect_rate(Direction::Egress, (Flood::Udp, FAR[1]), 10.0);
}

#[test]
fn low_rate_is_kept_too_and_tcp_can_use_it() {
    let scene = Scene::new();
    scene.limited(1_000_000).add(&scene.a);
    for direction in BOTH {
        scene.expect_rate(direction, (Flood::Tcp, FAR[1]), 1.0);
        scene.expect_rate(direction, (Flood::Udp, FAR[0]), 1.0);
    }
}

#[test]
fn reference_keeps_no_rate_in_the_first_second() {
    let scene = Scene::new();
    scene.limited(20_000_000).by_reference().add(&scene.a);
    // All tests here depend on this: a limit that does not hold is detected.
    let rates = scene.flood(Direction::Ingress, (Flood::Tcp, FAR[0]), 1);
    assert!(rates[0] > FREE, "{rates:?}");
}

#[test]
fn other_direction_is_free() {
    let scene = Scene::new();
    scene
        .bandwidth()
        .with("ingressRate", 10_000_000)
        .add(&scene.a);
    scene.expect_rate(Direction::Ingress, (Flood::Tcp, FAR[0]), 10.0);
    scene.expect_free(Direction::Egress, FAR[0]);
}

/// Limits an address in the subnets and leaves another one unlimited.
fn with_subnets(key: &str, limited: [&str; 2], free: [&str; 2]) {
    let scene = Scene::new();
    let network = scene.limited(2_000_000);
    let network = network.with(key, json!(["198.51.100.0/24", "2001:db8:1::/64"]));
    let result = network.add(&scene.a);
    network.check(&scene.a, &result).ok();
    for direction in BOTH {
        scene.expect_rate(direction, (Flood::Tcp, limited[0]), 2.0);
        scene.expect_rate(direction, (Flood::Udp, limited[1]), 2.0);
        for far in free {
            scene.expect_free(direction, far);
        }
    }
}

#[test]
fn shaped_subnets_alone_are_limited() {
    with_subnets("shapedSubnets", OTHER, FAR);
}

#[test]
fn unshaped_subnets_alone_are_not_limited() {
    with_subnets("unshapedSubnets", FAR, OTHER);
}

/// Returns the bytes that the link's limit let pass, and its rate.
fn passed(place: &impl Place, link: &str) -> (u64, u64) {
    let shown = place.tc(&format!("-statistics -json qdisc show dev {link} root"));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let rate = shown[0]["options"]["rate"].as_u64().unwrap_or_default();
    (shown[0]["bytes"].as_u64().unwrap(), rate)
}

#[test]
fn second_add_changes_the_rate_of_the_same_qdiscs_within_a_second() {
    let scene = Scene::new();
    let result = scene.limited(10_000_000).add(&scene.a);
    let link = result["interfaces"][1]["name"].as_str().unwrap();
    let counted = || [passed(&scene.host, link), passed(&scene.a, "eth0")];
    for direction in BOTH {
        scene.expect_rate(direction, (Flood::Tcp, FAR[0]), 10.0);
    }
    let before = counted();
    let faster = scene.limited(20_000_000);
    faster.add(&scene.a);
    faster.check(&scene.a, &result).ok();
    for ((bytes, rate), (before, _)) in counted().into_iter().zip(before) {
        // A new qdisc would start to count at 0.
        assert!(
            bytes >= before && rate == 2_500_000,
            "{link}: {bytes} {rate}"
        );
    }
    for direction in BOTH {
        scene.expect_rate(direction, (Flood::Udp, FAR[0]), 20.0);
    }
}

#[test]
fn second_add_changes_the_rate_for_subnets_in_place() {
    let scene = Scene::new();
    let shaped = |rate| {
        let network = scene.limited(rate);
        network.with("shapedSubnets", json!(["198.51.100.0/24"]))
    };
    let result = shaped(10_000_000).add(&scene.a);
    scene.expect_rate(Direction::Ingress, (Flood::Tcp, OTHER[0]), 10.0);
    let link = result["interfaces"][1]["name"].as_str().unwrap();
    let before = passed(&scene.host, link).0;
    shaped(5_000_000).add(&scene.a);
    shaped(5_000_000).check(&scene.a, &result).ok();
    assert!(before > 0 && passed(&scene.host, link).0 >= before);
    scene.expect_rate(Direction::Ingress, (Flood::Tcp, OTHER[0]), 5.0);
}

#[test]
fn ping_waits_no_longer_than_the_queue_is_long() {
    let scene = Scene::new();
    scene.limited(10_000_000).add(&scene.a);
    let stream = (Flood::Udp, FAR[0]);
    let mut times = std::thread::scope(|scope| {
        let flooding = scope.spawn(|| scene.flood(Direction::Ingress, stream, 4));
        let outside = &scene.outside;
        let shown = outside.run("ping", &["-n", "-i", "0.1", "-w", "3", "10.1.0.2"]);
        flooding.join().unwrap();
        let times = shown.lines().filter_map(|it| it.split_once("time="));
        times
            .filter_map(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok())
            .collect::<Vec<_>>()
    });
    times.sort_by(f64::total_cmp);
    // A kernel without fair queues has one of 25 ms; earlier releases added the burst to it.
    assert!(
        times.len() > 5 && times[times.len() / 2] < 40.0,
        "{times:?}"
    );
}

#[test]
fn rate_is_kept_with_the_smallest_and_the_largest_mtu() {
    for mtu in [1280, 65_535] {
        let scene = Scene::with_mtu(mtu);
        scene.limited(20_000_000).add(&scene.a);
        for direction in BOTH {
            scene.expect_rate(direction, (Flood::Tcp, FAR[0]), 20.0);
            scene.expect_rate(direction, (Flood::Udp, FAR[1]), 20.0);
        }
    }
}

#[test]
fn rate_that_needs_64_bits_slows_nothing_down() {
    let scene = Scene::new();
    scene.limited(40_000_000_000).add(&scene.a);
    for direction in BOTH {
        scene.expect_free(direction, FAR[0]);
    }
}
