//! bandwidth: attempts of root in a sandbox to exceed its egress limit, measured at the receiver.

use nix::errno::Errno;
use serde_json::{Value, json};
use tests::escape::{self, Header, INNER, datagram, evade};
use tests::faults::{Harm, Trace};
use tests::traffic::{self, Flood};
use tests::{Host, Invocation, Network, Place as _, Sandbox};

/// A sandbox limited to 10 Mbit/s, and another host that it reaches through this one.
struct Scene {
    host: Host,
    a: Sandbox,
    outside: Sandbox,
    result: Value,
    gateway: &'static str,
}

impl Scene {
    /// Creates a sandbox at a bridge port.
    fn bridged() -> Self {
        let (host, outside, a) = Self::places();
        let routes = json!([{"dst": "0.0.0.0/0"}]);
        let result = host.bridge_v4().with("ipam.routes", routes).add(&a);
        let gateway = "10.1.0.1";
        Self {
            host,
            a,
            outside,
            result,
            gateway,
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
        let gateway = "10.2.0.1";
        Self {
            host,
            a,
            outside,
            result,
            gateway,
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

    fn host_link(&self) -> &str {
        let interfaces = self.result["interfaces"].as_array().unwrap();
        let on_host = interfaces.iter().rfind(|it| it["sandbox"].is_null());
        on_host.unwrap()["name"].as_str().unwrap()
    }

    /// Returns the megabits from the sandbox's address that arrive at `far` in each of 3 seconds.
    fn flood(&self, kind: Flood, far: &str) -> Vec<f64> {
        let near = ["eth0", INNER].into_iter().filter(|it| self.a.has_link(it));
        let near = near.flat_map(|it| self.a.addresses(it)).next().unwrap();
        let near = near.split('/').next().unwrap();
        let (a, outside) = (&self.a, &self.outside);
        let rates = traffic::flood(kind, (a, near), (outside, far, "outside"), 3);
        rates.into_iter().map(|rate| rate / 1e6).collect()
    }

    /// Sends frames with these `EtherType`s, and returns the megabits per second at the receiver.
    fn pour(&self, link: &str, types: &[u16], far: [u8; 4]) -> Vec<f64> {
        let (to, from) = (self.host.mac("cni0"), self.a.mac(link));
        let header = Header {
            to: &to,
            from: &from,
            types,
        };
        let packet = datagram([10, 1, 0, 2], far);
        let frames = (&header, packet.as_slice());
        escape::pour((&self.a, link), frames, (&self.outside, "outside"), 3)
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

/// Checks that the backstop holds, that packets escape without it, and that RELOAD restores it.
fn backstop_holds(scene: &Scene) {
    let network = scene.limited();
    let result = network.add(&scene.a);
    let reload = || {
        scene
            .network_with(result.clone())
            .on("RELOAD", &scene.a)
            .ok()
    };
    evade(&scene.a, scene.gateway);
    expect_held(&scene.flood(Flood::Udp, FAR));
    expect_held(&scene.flood(Flood::Tcp, FAR));
    network.check(&scene.a, &result).ok();
    let there = scene.host.snapshot();
    scene.host.run("nft", &["flush", "ruleset"]);
    expect_free(&scene.flood(Flood::Tcp, FAR));
    let refusal = network.check(&scene.a, &result).error();
    refusal.expect(100, &["cni-bandwidth", "limits", "cnitool reload"]);
    reload();
    scene.host.snapshot().assert_same_as(&there);
    network.check(&scene.a, &result).ok();
    expect_held(&scene.flood(Flood::Udp, FAR));
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

#[test]
fn packets_from_the_ifb_are_not_dropped() {
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
        expect_held(&scene.pour("eth0", types, shaped));
    }
    evade(&scene.a, scene.gateway);
    expect_free(&scene.flood(Flood::Tcp, FAR));
    for types in ENCAPSULATIONS {
        expect_held(&scene.pour(INNER, types, shaped));
    }
}

#[test]
fn unshaped_subnets_alone_are_not_limited() {
    let scene = Scene::bridged();
    let network = scene
        .limited()
        .with("unshapedSubnets", json!(["192.0.2.0/24"]));
    network.add(&scene.a);
    evade(&scene.a, scene.gateway);
    expect_free(&scene.flood(Flood::Udp, FAR));
    expect_held(&scene.flood(Flood::Udp, OTHER));
    expect_held(&scene.pour(INNER, &[TAG, IPV4], [198, 51, 100, 2]));
}

#[test]
fn other_protocols_than_ip_are_limited_at_the_ifb_and_past_it() {
    let scene = Scene::bridged();
    let b = scene.host.sandbox("b");
    scene.host.bridge_v4().add(&b);
    let network = scene
        .limited()
        .with("shapedSubnets", json!(["198.51.100.0/24"]));
    network.add(&scene.a);
    let to = b.mac("eth0");
    for link in ["eth0", INNER] {
        if link == INNER {
            evade(&scene.a, scene.gateway);
        }
        let from = scene.a.mac(link);
        let header = Header {
            to: &to,
            from: &from,
            types: &[EXPERIMENT],
        };
        let rates = escape::pour((&scene.a, link), (&header, &[0; 1400]), (&b, "eth0"), 3);
        expect_held(&rates);
    }
}

/// Returns the elements of an attachment, and its shared ones.
fn elements(host: &Host, family: &str) -> String {
    host.run("nft", &["list", "table", family, "cni-bandwidth"])
}

#[test]
fn del_and_gc_leave_nothing_of_it_and_need_nothing_but_names() {
    let scene = Scene::bridged();
    let (host, a) = (&scene.host, &scene.a);
    let b = host.sandbox("b");
    let of_b = host.bridge_v4().add(&b);
    let shaped = json!(["198.51.100.0/24"]);
    let [of_a, of_b] = [&scene.result, &of_b].map(|result| {
        let network = scene.network_with(result.clone());
        network.with("shapedSubnets", shaped.clone())
    });
    let has = |word: &str| elements(host, "bridge").contains(word);
    let add = |network: &Network<'_>, sandbox| drop(network.add(sandbox));
    add(&of_a, a);
    add(&of_b, &b);
    assert!(has("cni:pods/a/eth0") && has("cni:pods/b/eth0") && has("policy-"));
    host.bandwidth().on("DEL", a).without("CNI_NETNS").ok();
    assert!(!has("cni:pods/a/eth0") && has("cni:pods/b/eth0") && has("policy-"));
    host.bandwidth().on("DEL", &b).netns("/run/netns/gone").ok();
    assert!(!has("cni:") && !has("chain policy-"));
    add(&of_a, a);
    add(&of_b, &b);
    let collected = host.bandwidth().gc(&[a]).run();
    assert!(
        collected.stderr.contains("cni:pods/b/eth0"),
        "{collected:#?}"
    );
    assert!(has("cni:pods/a/eth0") && !has("cni:pods/b/eth0"));
    host.bandwidth().gc(&[]).ok();
    assert!(!has("cni:") && !has("chain policy-"));
}

#[test]
fn a_second_add_leaves_nothing_of_the_first_one() {
    let scene = Scene::bridged();
    let shaped = scene
        .limited()
        .with("shapedSubnets", json!(["198.51.100.0/24"]));
    let result = shaped.add(&scene.a);
    let all = scene.limited();
    let refusal = all.check(&scene.a, &result).error();
    refusal.expect(100, &["policies", "was not asked for"]);
    let result = all.add(&scene.a);
    all.check(&scene.a, &result).ok();
    let elements = elements(&scene.host, "bridge");
    assert_eq!(elements.matches("cni:").count(), 1, "{elements}");
    let faster = scene.limited().with("egressRate", 20_000_000);
    let refusal = faster.check(&scene.a, &result).error();
    refusal.expect(100, &["element of cni:pods/a/eth0 in set limits"]);
}

#[test]
fn reload_adds_nothing_without_an_attachment() {
    let scene = Scene::bridged();
    let network = scene.limited();
    let result = network.add(&scene.a);
    let reload = scene.network_with(result).on("RELOAD", &scene.a);
    network.del(&scene.a);
    reload.error().expect(100, &["container a", "no ifb"]);
    assert!(!elements(&scene.host, "bridge").contains("cni:"));
}

#[test]
fn rate_that_cannot_be_counted_is_limited_by_the_ifb_alone_and_reported() {
    let scene = Scene::bridged();
    let network = scene.limited().with("egressRate", 10_u64.pow(15));
    let added = network.on("ADD", &scene.a).run();
    assert!(added.stderr.contains("egressRate: "), "{added:#?}");
    network.check(&scene.a, &added.ok()).ok();
    let rules = scene.host.run("nft", &["list", "ruleset"]);
    assert!(!rules.contains("cni:"), "{rules}");
}

#[test]
fn lower_limit_in_nf_tables_ends_with_a_rate_that_cannot_be_counted() {
    let scene = Scene::bridged();
    scene.limited().add(&scene.a);
    assert!(elements(&scene.host, "bridge").contains("cni:"));
    let faster = scene.limited().with("egressRate", 200_000_000_000_u64);
    let result = faster.add(&scene.a);
    assert!(!elements(&scene.host, "bridge").contains("cni:"));
    faster.check(&scene.a, &result).ok();
}

#[test]
fn without_nf_tables_only_the_ifb_limits_and_one_line_reports_it() {
    let scene = Scene::bridged();
    let (network, file) = (scene.limited(), scene.host.dir().join("trace"));
    let result = network.add(&scene.a);
    let checked = scene.network_with(result.clone());
    let without = |invocation: &Invocation| {
        let calls = Trace::of(invocation, &file).calls("socket");
        let call = calls
            .iter()
            .find(|it| it.line().contains("NETLINK_NETFILTER"));
        let fault = call.unwrap().with(Harm::Error(Errno::EPROTONOSUPPORT));
        fault.strikes(invocation, &file).run()
    };
    let words = "without nf_tables root in a container can send more than its limit";
    let added = without(&network.on("ADD", &scene.a));
    assert_eq!(added.stderr.matches(words).count(), 1, "{added:#?}");
    assert_eq!(added.ok(), result);
    scene.host.run("nft", &["flush", "ruleset"]);
    checked.on("RELOAD", &scene.a).ok();
    assert_eq!(without(&checked.on("CHECK", &scene.a)).ok(), Value::Null);
    let status = network.with("cniVersion", "1.1.0").call("STATUS");
    let status = without(&status);
    assert_eq!(status.stderr.matches(words).count(), 1, "{status:#?}");
    status.ok();
    assert_eq!(
        without(&scene.host.bandwidth().on("DEL", &scene.a)).ok(),
        Value::Null
    );
}
