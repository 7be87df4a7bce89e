//! bandwidth: what holds of an egress limit against a process in the sandbox, measured at the
//! receiver. The page of the plugin has the same table.

use serde_json::{Value, json};
use tests::escape::{self, Header, Way, datagram};
use tests::traffic::{self, Flood};
use tests::{Host, Network, Place as _, Sandbox};

/// A sandbox limited to 10 Mbit/s, and another host that it reaches through this one.
struct Scene {
    host: Host,
    a: Sandbox,
    outside: Sandbox,
    result: Value,
}

impl Scene {
    /// Creates a sandbox at a bridge port.
    fn bridged() -> Self {
        let (host, outside, a) = Self::places();
        let routes = json!([{"dst": "0.0.0.0/0"}]);
        let result = host.bridge_v4().with("ipam.routes", routes).add(&a);
        Self {
            host,
            a,
            outside,
            result,
        }
    }

    /// Creates a sandbox with a pair but no bridge, like ptp.
    fn routed() -> Self {
        let (host, outside, a) = Self::places();
        host.ip("link add routed type veth peer name eth0 netns a");
        host.ip("address add 10.2.0.1/24 dev routed");
        host.ip("link set dev routed up");
        host.set_sysctl("net/ipv4/conf/all/forwarding", "1");
        for arguments in [
            "address add 10.2.0.2/24 dev eth0",
            "link set dev eth0 up",
            "route add default via 10.2.0.1",
        ] {
            a.ip(arguments);
        }
        let interfaces = json!([{"name": "routed"}, {"name": "eth0", "sandbox": a.path()}]);
        let result = json!({"cniVersion": "1.0.0", "interfaces": interfaces});
        Self {
            host,
            a,
            outside,
            result,
        }
    }

    fn places() -> (Host, Sandbox, Sandbox) {
        let host = Host::new();
        let (outside, a) = (host.outside(), host.sandbox("a"));
        outside.ip("address add 198.51.100.2/24 dev outside");
        host.ip("address add 198.51.100.1/24 dev uplink");
        outside.ip("route add default via 192.0.2.1");
        (host, outside, a)
    }

    fn limited(&self) -> Network<'_> {
        let network = self.host.bandwidth().with("egressRate", RATE * 1_000_000);
        network.with("prevResult", self.result.clone())
    }

    fn network_with(&self, result: Value) -> Network<'_> {
        self.limited().with("prevResult", result)
    }

    /// Removes the qdisc, as root in the sandbox can.
    fn evade(&self) {
        self.a.tc("qdisc delete dev eth0 root");
    }

    fn host_link(&self) -> &str {
        let interfaces = self.result["interfaces"].as_array().unwrap();
        let on_host = interfaces.iter().rfind(|it| it["sandbox"].is_null());
        on_host.unwrap()["name"].as_str().unwrap()
    }

    /// Returns the megabits from the sandbox's address that arrive at `far` in each of 3 seconds.
    fn flood(&self, kind: Flood, far: &str) -> Vec<f64> {
        let near = self.a.addresses("eth0").remove(0);
        let near = near.split('/').next().unwrap();
        let (a, outside) = (&self.a, &self.outside);
        let rates = traffic::flood(kind, (a, near), (outside, far, "outside"), 3);
        rates.into_iter().map(|rate| rate / 1e6).collect()
    }

    /// Sends frames with these `EtherType`s, and returns the megabits per second at the receiver.
    fn pour(&self, way: Way, types: &[u16], far: [u8; 4]) -> Vec<f64> {
        let (to, from) = (self.host.mac("cni0"), self.a.mac("eth0"));
        let header = Header {
            to: &to,
            from: &from,
            types,
        };
        let packet = datagram([10, 1, 0, 2], far);
        let frames = (&header, packet.as_slice());
        escape::pour(
            (&self.a, "eth0", way),
            frames,
            (&self.outside, "outside"),
            3,
        )
    }
}

/// Megabits per second.
const RATE: u32 = 10;

/// Bursts of 50 ms and of 64 KiB together, in megabits, plus a margin.
const BURST: f64 = 1.2;

const FAR: &str = "192.0.2.2";
const OTHER: &str = "198.51.100.2";

/// Megabits per second that no limit of these tests allows and every machine reaches.
const FREE: f64 = 30.0;

/// [`Header::types`]: IPv4, VLAN 0 by 802.1Q and by 802.1ad, a protocol for local experiments.
const IPV4: u16 = 0x0800;
const TAG: u16 = 0x8100;
const OUTER_TAG: u16 = 0x88a8;
const EXPERIMENT: u16 = 0x88b5;

const ENCAPSULATIONS: [&[u16]; 4] = [
    &[IPV4],
    &[TAG, IPV4],
    &[TAG, TAG, IPV4],
    &[OUTER_TAG, TAG, IPV4],
];

/// Checks that the rate is kept with a margin of a tenth, plus one second and the burst at the
/// start. A sender that pauses gets a part of those again. The counters include headers that the
/// backstop does not count.
#[track_caller]
fn expect_held(rates: &[f64]) {
    let rate = f64::from(RATE) * 1.1 * 1.02;
    let mut most = rate + BURST;
    let mut passed = 0.0;
    for second in rates {
        (most, passed) = (most + rate, passed + second);
        assert!(passed < most, "{rates:?}");
    }
    assert!(passed > 0.5 * rate, "{rates:?}");
}

#[track_caller]
fn expect_free(rates: &[f64]) {
    assert!(rates.iter().any(|it| *it > FREE), "{rates:?}");
}

/// Checks that the rate is kept within five percent, after a second and the burst.
#[track_caller]
fn expect_shaped(rates: &[f64]) {
    let later: f64 = rates[1..].iter().sum();
    let seconds = f64::from(u32::try_from(rates.len() - 1).unwrap());
    let rate = later / seconds / f64::from(RATE);
    assert!(rate > 0.8 && rate < 1.05, "{rates:?}");
}

/// Checks what holds without the qdisc: the backstop, and nothing after a flush until RELOAD.
fn backstop_holds(scene: &Scene) {
    let network = scene.limited();
    let result = network.add(&scene.a);
    let reload = scene.network_with(result.clone()).on("RELOAD", &scene.a);
    expect_shaped(&scene.flood(Flood::Udp, FAR));
    scene.evade();
    expect_held(&scene.flood(Flood::Udp, FAR));
    expect_held(&scene.flood(Flood::Tcp, FAR));
    let refusal = network.check(&scene.a, &result).error();
    refusal.expect(100, &["eth0 has no limit"]);
    let there = scene.host.snapshot();
    scene.host.run("nft", &["flush", "ruleset"]);
    expect_free(&scene.flood(Flood::Tcp, FAR));
    let refusal = network.check(&scene.a, &result).error();
    refusal.expect(100, &["cni-bandwidth", "limits", "cnitool reload"]);
    reload.ok();
    scene.host.snapshot().assert_same_as(&there);
    expect_held(&scene.flood(Flood::Udp, FAR));
    network.add(&scene.a);
    network.check(&scene.a, &result).ok();
    scene.host.run("nft", &["flush", "ruleset"]);
    expect_shaped(&scene.flood(Flood::Tcp, FAR));
}

#[test]
fn root_in_a_sandbox_on_a_bridge_gets_a_tenth_more_than_its_rate() {
    backstop_holds(&Scene::bridged());
}

#[test]
fn root_in_a_sandbox_without_a_bridge_gets_a_tenth_more_than_its_rate() {
    backstop_holds(&Scene::routed());
}

/// Returns the packets that arrive at the host's end, before and after the backstop.
fn counted(scene: &Scene) -> [u64; 2] {
    let list = ["-j", "list", "table", "bridge", "counted"];
    let listed: Value = serde_json::from_str(&scene.host.run("nft", &list)).unwrap();
    let objects = listed["nftables"].as_array().unwrap().iter();
    let rules = objects.filter_map(|it| it["rule"]["expr"].as_array());
    let packets = rules.filter_map(|it| it[1]["counter"]["packets"].as_u64());
    packets.collect::<Vec<_>>().try_into().unwrap()
}

/// `CAP_NET_RAW` is one of containerd's default capabilities.
#[test]
fn packet_socket_past_the_qdisc_gets_a_tenth_more_than_the_rate() {
    let scene = Scene::bridged();
    scene.limited().add(&scene.a);
    expect_shaped(&scene.pour(Way::Queued, &[IPV4], [192, 0, 2, 2]));
    expect_held(&scene.pour(Way::Bypassing, &[IPV4], [192, 0, 2, 2]));
    scene.host.run("nft", &["flush", "ruleset"]);
    expect_free(&scene.pour(Way::Bypassing, &[IPV4], [192, 0, 2, 2]));
    expect_shaped(&scene.pour(Way::Queued, &[IPV4], [192, 0, 2, 2]));
}

/// An eBPF program at the host's ingress that sends packets on (`bpf_redirect`) takes them past
/// `nf_tables`, as this filter does.
#[test]
fn redirection_at_the_host_leaves_only_the_qdisc() {
    let scene = Scene::routed();
    scene.limited().add(&scene.a);
    let (host, a) = (&scene.host, &scene.a);
    let link = scene.host_link();
    // The receiver takes the frames that the sandbox addresses to its gateway.
    let mac = host.mac(link);
    scene.outside.ip(&format!("link set outside address {mac}"));
    host.ip("neighbour flush dev uplink");
    host.tc(&format!("qdisc add dev {link} clsact"));
    let filter = format!("filter add dev {link} ingress protocol ip u32 match ip dst {FAR}");
    host.tc(&format!(
        "{filter} action mirred egress redirect dev uplink"
    ));
    expect_shaped(&scene.flood(Flood::Udp, FAR));
    a.tc("qdisc delete dev eth0 root");
    expect_free(&scene.flood(Flood::Udp, FAR));
    expect_held(&scene.flood(Flood::Udp, OTHER));
}

#[test]
fn packets_that_keep_to_the_limit_are_not_dropped() {
    let scene = Scene::bridged();
    scene.limited().add(&scene.a);
    let link = scene.host_link();
    let chain = |name, priority| {
        format!(
            "chain {name} {{ type filter hook prerouting priority {priority}; iifname {link} counter; }}"
        )
    };
    let [before, behind] = [chain("before", -301), chain("behind", -299)];
    let table = format!("table bridge counted {{ {before}; {behind}; }}");
    scene.host.run("nft", &[&table]);
    // A packet that is between the two chains when they appear counts only once.
    let at_first = counted(&scene);
    for kind in [Flood::Tcp, Flood::Udp] {
        let rates = scene.flood(kind, FAR);
        assert!(rates.iter().sum::<f64>() > 15.0, "{rates:?}");
    }
    let now = counted(&scene);
    let [before, behind] = [0, 1].map(|chain| now[chain] - at_first[chain]);
    assert!(before > 2_000, "{before}");
    assert_eq!(before, behind);
}

#[test]
fn only_shaped_subnets_are_limited_whatever_the_frame_looks_like() {
    let scene = Scene::bridged();
    let network = scene
        .limited()
        .with("shapedSubnets", json!(["198.51.100.0/24", "198.51.0.0/16"]));
    let result = network.add(&scene.a);
    network.check(&scene.a, &result).ok();
    expect_free(&scene.flood(Flood::Tcp, FAR));
    let shaped = [198, 51, 100, 2];
    for types in ENCAPSULATIONS {
        expect_shaped(&scene.pour(Way::Queued, types, shaped));
        expect_held(&scene.pour(Way::Bypassing, types, shaped));
    }
    expect_free(&scene.pour(Way::Bypassing, &[IPV4], [192, 0, 2, 2]));
}

#[test]
fn unshaped_subnets_alone_are_not_limited() {
    let scene = Scene::bridged();
    let network = scene
        .limited()
        .with("unshapedSubnets", json!(["192.0.2.0/24"]));
    network.add(&scene.a);
    expect_free(&scene.flood(Flood::Udp, FAR));
    expect_shaped(&scene.flood(Flood::Udp, OTHER));
    scene.evade();
    expect_free(&scene.flood(Flood::Udp, FAR));
    expect_held(&scene.flood(Flood::Udp, OTHER));
    expect_held(&scene.pour(Way::Bypassing, &[TAG, IPV4], [198, 51, 100, 2]));
}

#[test]
fn other_protocols_than_ip_are_limited_at_the_qdisc_and_past_it() {
    let scene = Scene::bridged();
    let b = scene.host.sandbox("b");
    scene.host.bridge_v4().add(&b);
    let network = scene
        .limited()
        .with("shapedSubnets", json!(["198.51.100.0/24"]));
    network.add(&scene.a);
    let to = b.mac("eth0");
    let from = scene.a.mac("eth0");
    for way in [Way::Queued, Way::Bypassing] {
        let header = Header {
            to: &to,
            from: &from,
            types: &[EXPERIMENT],
        };
        let rates = escape::pour(
            (&scene.a, "eth0", way),
            (&header, &[0; 1400]),
            (&b, "eth0"),
            3,
        );
        expect_held(&rates);
    }
}
