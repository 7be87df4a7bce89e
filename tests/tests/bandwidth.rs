//! bandwidth: limits of ADD, comparisons of CHECK, leftovers of DEL and GC.

use serde_json::{Value, json};
use tests::faults::Trace;
use tests::result::ifb_of;
use tests::{Host, Network, Place as _, Sandbox};

/// A sandbox on the bridge, for the plugins behind it in the chain.
struct Chain<'h> {
    host: &'h Host,
    sandbox: Sandbox,
    result: Value,
}

impl<'h> Chain<'h> {
    fn new(host: &'h Host, name: &str) -> Self {
        let sandbox = host.sandbox(name);
        let result = host.bridge_v4().add(&sandbox);
        Self {
            host,
            sandbox,
            result,
        }
    }

    /// Returns the name of the pair's host end.
    fn host_link(&self) -> &str {
        self.result["interfaces"][1]["name"].as_str().unwrap()
    }

    fn bandwidth(&self) -> Network<'h> {
        let network = self.host.bandwidth();
        network.with("prevResult", self.result.clone())
    }

    /// Returns limits of 10 Mbit/s towards the sandbox and 20 from it, with the runtime's value for
    /// an unset burst.
    fn limited(&self, burst: u64) -> Network<'h> {
        self.bandwidth().with(
            "runtimeConfig.bandwidth",
            json!({
                "ingressRate": 10_000_000, "ingressBurst": burst,
                "egressRate": 20_000_000, "egressBurst": burst,
            }),
        )
    }
}

/// Values of containerd, CRI-O and cri-dockerd for an unset burst.
const SENTINELS: [u64; 3] = [4_294_967_295, 34_359_738_359, 2_147_483_647];

/// Returns the egress limit of a link: bytes per second, and bytes at once.
#[track_caller]
fn limit(host: &Host, link: &str) -> (u64, u64) {
    let qdiscs = host.qdiscs(link);
    let root = qdiscs.iter().find(|it| it["root"] == true);
    let root = root.unwrap_or_else(|| panic!("{link} has no limit"));
    assert_eq!(root["kind"], "tbf", "{root}");
    let number = |key: &str| root["options"][key].as_u64().unwrap();
    (number("rate"), number("burst"))
}

#[test]
fn add_limits_both_directions_and_reports_the_ifb_last() {
    let host = Host::new();
    let a = Chain::new(&host, "a");
    let result = a.limited(SENTINELS[0]).add(&a.sandbox);
    assert_eq!(limit(&host, a.host_link()), (1_250_000, 62_500));
    let ifb = ifb_of(&result).to_owned();
    assert_eq!(limit(&host, &ifb), (2_500_000, 125_000));
    let link = host.link(&ifb);
    assert_eq!(link["ifalias"], "cni:pods/a/eth0");
    assert_eq!(link["mtu"], host.link(a.host_link())["mtu"]);
    assert_eq!(host.addr_assign_type(&ifb), "3");
    let mut expected = a.result.clone();
    let reported = json!({"name": ifb, "mac": host.mac(&ifb)});
    expected["interfaces"]
        .as_array_mut()
        .unwrap()
        .push(reported);
    assert_eq!(result, expected);
    a.limited(SENTINELS[0]).check(&a.sandbox, &result).ok();
}

#[test]
fn either_direction_can_be_limited_alone() {
    let host = Host::new();
    let (a, b) = (Chain::new(&host, "a"), Chain::new(&host, "b"));
    let ingress = a.bandwidth().with("ingressRate", 1_000_000);
    let result = ingress.add(&a.sandbox);
    assert_eq!(result, a.result);
    assert_eq!(limit(&host, a.host_link()), (125_000, 6250));
    assert!(host.ifbs().is_empty());
    ingress.check(&a.sandbox, &result).ok();
    let egress = b.bandwidth().with("egressRate", 1_000_000);
    let result = egress.add(&b.sandbox);
    assert_eq!(limit(&host, ifb_of(&result)), (125_000, 6250));
    assert!(
        host.qdiscs(b.host_link())
            .iter()
            .all(|it| it["root"] != true)
    );
    egress.check(&b.sandbox, &result).ok();
}

#[test]
fn configured_burst_is_used() {
    let host = Host::new();
    let a = Chain::new(&host, "a");
    let bursts = |network: Network<'_>| {
        let result = network.add(&a.sandbox);
        network.check(&a.sandbox, &result).ok();
        [a.host_link(), ifb_of(&result)].map(|link| limit(&host, link).1)
    };
    for burst in [0].into_iter().chain(SENTINELS) {
        assert_eq!(bursts(a.limited(burst)), [62_500, 125_000]);
        let default = a.limited(burst).with("defaultBurst", 400_000);
        assert_eq!(bursts(default), [50_000, 50_000]);
    }
    let chosen = a.limited(160_000).with("defaultBurst", 400_000);
    assert_eq!(bursts(chosen), [20_000, 20_000]);
}

#[test]
fn slow_and_fast_rates_fit_links_of_every_mtu() {
    for mtu in [1280, 9000, 65_535] {
        let host = Host::new();
        let sandbox = host.sandbox("a");
        let result = host.bridge_v4().with("mtu", mtu).add(&sandbox);
        for rate in [64_000, 1_000_000, 1_000_000_000, 40_000_000_000_u64] {
            let limits = json!({"ingressRate": rate, "egressRate": rate});
            let network = host.bandwidth().with("prevResult", result.clone());
            let network = network.with("runtimeConfig.bandwidth", limits);
            let limited = network.add(&sandbox);
            let link = result["interfaces"][1]["name"].as_str().unwrap();
            for link in [link, ifb_of(&limited)] {
                let (held, burst) = limit(&host, link);
                // A rate above 34 Gbit/s does not fit into 32 bits.
                assert_eq!(held, rate / 8, "{mtu} {rate}");
                assert!(burst >= mtu + 14, "{mtu} {rate}: {burst}");
            }
            network.check(&sandbox, &limited).ok();
        }
    }
}

#[test]
fn burst_that_holds_no_frame_is_refused_with_its_bounds() {
    let host = Host::new();
    let a = Chain::new(&host, "a");
    let before = host.snapshot();
    let bounds = ["12111", "12112", "34359738360"];
    let own = a.bandwidth().with("egressRate", 1_000_000);
    for network in [
        own.clone().with("egressBurst", 12_111),
        own.clone().with("defaultBurst", 12_111),
    ] {
        network.on("ADD", &a.sandbox).error().expect(7, &bounds);
    }
    host.snapshot().assert_same_as(&before);
    own.with("egressBurst", 12_112).add(&a.sandbox);
}

#[test]
fn annotations_are_limits_without_other_configuration() {
    let host = Host::new();
    let a = Chain::new(&host, "a");
    let annotations = json!({"io.kubernetes.cri.pod-annotations": {
        "kubernetes.io/ingress-bandwidth": "8Mi", "kubernetes.io/egress-bandwidth": "1e6",
    }});
    let network = a.bandwidth().with("runtimeConfig", annotations);
    let result = network.add(&a.sandbox);
    assert_eq!(limit(&host, a.host_link()).0, 1 << 20);
    assert_eq!(limit(&host, ifb_of(&result)).0, 125_000);
    network.check(&a.sandbox, &result).ok();
}

#[test]
fn del_needs_nothing_but_the_names() {
    let host = Host::new();
    // The nf_tables tables stay after the host's first attachment.
    let warm = Chain::new(&host, "warm");
    warm.limited(0).add(&warm.sandbox);
    warm.limited(0).del(&warm.sandbox);
    host.bridge_v4().del(&warm.sandbox);
    let a = Chain::new(&host, "a");
    let before = host.snapshot();
    for delete in [
        |a: &Chain<'_>| a.limited(0).on("DEL", &a.sandbox),
        |a: &Chain<'_>| {
            a.host
                .bandwidth()
                .on("DEL", &a.sandbox)
                .without("CNI_NETNS")
        },
        |a: &Chain<'_>| {
            a.host
                .bandwidth()
                .on("DEL", &a.sandbox)
                .netns("/run/netns/gone")
        },
    ] {
        a.limited(0).add(&a.sandbox);
        assert_eq!(host.ifbs().len(), 1);
        for _ in 0..2 {
            assert_eq!(delete(&a).ok(), Value::Null);
            assert!(host.ifbs().is_empty());
        }
    }
    a.limited(0).add(&a.sandbox);
    host.bridge_v4().del(&a.sandbox);
    host.bandwidth().del(&a.sandbox);
    let left = host.snapshot().differences(&before);
    let of_the_pair = |it: &&String| !it.contains(a.host_link()) && !it.contains("lease");
    assert!(!left.iter().any(|it| of_the_pair(&it)), "{left:#?}");
}

/// Closing an `nf_tables` socket may take 15 ms after another process's deletion.
#[test]
fn del_of_an_unlimited_attachment_does_not_change_nf_tables() {
    let host = Host::new();
    let (a, file) = (Chain::new(&host, "a"), host.dir().join("trace"));
    let looks = || {
        let sockets = Trace::of(&host.bandwidth().on("DEL", &a.sandbox), &file).calls("socket");
        sockets
            .iter()
            .any(|it| it.line().contains("NETLINK_NETFILTER"))
    };
    a.bandwidth().with("ingressRate", 1_000_000).add(&a.sandbox);
    assert!(!looks());
    a.limited(0).add(&a.sandbox);
    assert!(looks());
    assert!(!looks());
}

#[test]
fn second_interface_of_a_container_has_its_own_ifb() {
    let host = Host::new();
    let a = host.sandbox("a");
    let chain = |interface: &str| {
        let bridge = host.bridge_v4().on("ADD", &a).ifname(interface).ok();
        let limited = host
            .bandwidth()
            .with("prevResult", bridge)
            .with("egressRate", 1_000_000);
        let run = |verb: &str| limited.on(verb, &a).ifname(interface);
        let result = run("ADD").ok();
        run("CHECK").ok();
        ifb_of(&result).to_owned()
    };
    let [first, second] = ["eth0", "eth1"].map(chain);
    assert_ne!(first, second);
    let delete = |interface: &str| host.bandwidth().on("DEL", &a).ifname(interface).ok();
    delete("eth0");
    assert!(!host.has_link(&first) && host.has_link(&second));
    delete("eth1");
    assert!(host.ifbs().is_empty());
}

#[test]
fn gc_removes_ifbs_of_unlisted_attachments() {
    let host = Host::new();
    let (a, b) = (Chain::new(&host, "a"), Chain::new(&host, "b"));
    let [_, kept] = [&a, &b].map(|it| ifb_of(&it.limited(0).add(&it.sandbox)).to_owned());
    let foreign = [("ifb0", "somebody's"), ("ifb1", "cni:other/a/eth0")];
    for (name, alias) in foreign {
        host.ip(&format!("link add {name} type ifb"));
        host.run("ip", &["link", "set", name, "alias", alias]);
    }
    host.bandwidth().gc(&[&b.sandbox]).ok();
    let names = |ifb: &Value| ifb["ifname"].as_str().unwrap().to_owned();
    let mut left: Vec<_> = host.ifbs().iter().map(names).collect();
    left.sort();
    assert_eq!(left, [kept.as_str(), "ifb0", "ifb1"]);
    assert!(
        host.has_link(a.host_link()),
        "the pair is not ours to delete"
    );
}

#[test]
fn check_reports_differences() {
    let host = Host::new();
    let a = Chain::new(&host, "a");
    let network = a.limited(0);
    let result = network.add(&a.sandbox);
    let (link, ifb) = (a.host_link(), ifb_of(&result));
    let tbf =
        |link: &str, rest: &str| format!("tc qdisc change dev {link} root handle b0: tbf {rest}");
    for (change, words) in [
        (
            tbf(link, "rate 11mbit burst 62500 limit 93750"),
            [link, "1375000"],
        ),
        (
            tbf(link, "rate 10mbit burst 32000 limit 93750"),
            [link, "32000"],
        ),
        (
            tbf(ifb, "rate 20mbit burst 125000 limit 3000000"),
            [ifb, "3000000"],
        ),
        (format!("tc qdisc del dev {link} root"), [link, "no limit"]),
        (format!("tc filter del dev {link} ingress"), [link, ifb]),
        (format!("tc qdisc del dev {link} ingress"), [link, ifb]),
        (format!("ip link set {ifb} down"), [ifb, "down"]),
        (format!("ip link set {ifb} mtu 1400"), [ifb, "1400"]),
        (format!("ip link del {ifb}"), ["ifb", "gone"]),
    ] {
        network.check(&a.sandbox, &result).ok();
        host.run("sh", &["-c", &change]);
        let refusal = network.check(&a.sandbox, &result).error();
        refusal.expect(100, &words);
        network.add(&a.sandbox);
        host.ip(&format!("link set {ifb} up"));
    }
    network.check(&a.sandbox, &result).ok();
}

#[test]
fn sandbox_without_a_pair_is_refused_where_a_limit_is_asked_for() {
    let host = Host::new();
    let a = host.sandbox("a");
    a.ip("link add eth0 type bridge");
    let result = json!({
        "cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": a.path()}],
    });
    let network = host.bandwidth().with("prevResult", result);
    network.add(&a);
    let limited = network.with("egressRate", 1_000_000);
    for verb in ["ADD", "CHECK"] {
        limited
            .on(verb, &a)
            .error()
            .expect(7, &["prevResult", "eth0", "of kind bridge"]);
    }
    assert!(host.ifbs().is_empty());
}

#[test]
fn pair_that_no_plugin_reported_is_refused() {
    let host = Host::new();
    let a = Chain::new(&host, "a");
    // As if another plugin had made it.
    let others = "alias other address 02:00:00:00:00:09";
    host.ip(&format!("link set {} {others}", a.host_link()));
    let mut result = a.result.clone();
    result["interfaces"].as_array_mut().unwrap().remove(1);
    result["ips"] = json!([]);
    let network = a.limited(0).with("prevResult", result);
    let refusal = network.on("ADD", &a.sandbox).error();
    refusal.expect(7, &["prevResult", a.host_link()]);
}

#[test]
fn pair_is_found_with_and_without_a_look_into_the_sandbox() {
    let host = Host::new();
    let a = Chain::new(&host, "a");
    host.ip("link add other type veth peer name more");
    host.ip(&format!("link set more netns {}", a.sandbox.name()));
    let (other, file) = (host.mac("other"), host.dir().join("trace"));
    let more = json!({"name": "more", "sandbox": a.sandbox.path()});
    for (added, mac, looks) in [
        (vec![], a.result["interfaces"][1]["mac"].clone(), false),
        (vec![], json!("02:00:00:00:00:01"), true),
        (vec![json!({"name": "other"})], Value::Null, true),
        (vec![more.clone()], Value::Null, true),
        (
            vec![json!({"name": "other", "mac": other}), more],
            Value::Null,
            true,
        ),
    ] {
        let mut result = a.result.clone();
        result["interfaces"].as_array_mut().unwrap().extend(added);
        result["interfaces"][1]["mac"] = mac;
        let network = a.limited(0).with("prevResult", result);
        let trace = Trace::of(&network.on("ADD", &a.sandbox), &file);
        assert_eq!(!trace.calls("setns").is_empty(), looks, "{network:?}");
        assert_eq!(limit(&host, a.host_link()), (1_250_000, 62_500));
        assert!(host.qdiscs("other").iter().all(|it| it["kind"] != "tbf"));
        network.del(&a.sandbox);
        host.tc(&format!("qdisc delete dev {} root", a.host_link()));
    }
}
