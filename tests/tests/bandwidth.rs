//! bandwidth: limits of ADD, comparisons of CHECK, leftovers of DEL and GC.

use std::fs;

use serde_json::{Value, json};
use tests::limited::record;
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

    /// Returns rate and burst towards the sandbox and from it.
    fn limits(&self) -> [Option<(u64, u64)>; 2] {
        [
            self.host.limit(self.host_link()),
            self.sandbox.limit("eth0"),
        ]
    }

    fn has_backstop(&self) -> bool {
        let rules = self.host.run("nft", &["list", "ruleset"]);
        rules.contains(&format!("cni:pods/{}/eth0", self.sandbox.name()))
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

#[test]
fn add_limits_both_ends_of_the_pair_and_changes_no_result() {
    let host = Host::new();
    let a = Chain::new(&host, "a");
    let links = host.links();
    let result = a.limited(SENTINELS[0]).add(&a.sandbox);
    assert_eq!(
        a.limits(),
        [Some((1_250_000, 62_500)), Some((2_500_000, 125_000))]
    );
    assert_eq!(result, a.result);
    assert_eq!(host.links(), links);
    assert_eq!(fs::read_to_string(record("a")).unwrap(), "limits egress\n");
    a.limited(SENTINELS[0]).check(&a.sandbox, &result).ok();
}

#[test]
fn either_direction_can_be_limited_alone() {
    let host = Host::new();
    let (a, b) = (Chain::new(&host, "a"), Chain::new(&host, "b"));
    let ingress = a.bandwidth().with("ingressRate", 1_000_000);
    let result = ingress.add(&a.sandbox);
    assert_eq!(a.limits(), [Some((125_000, 6250)), None]);
    assert!(!record("a").exists());
    ingress.check(&a.sandbox, &result).ok();
    let egress = b.bandwidth().with("egressRate", 1_000_000);
    let result = egress.add(&b.sandbox);
    assert_eq!(b.limits(), [None, Some((125_000, 6250))]);
    egress.check(&b.sandbox, &result).ok();
}

#[test]
fn configured_burst_is_used() {
    let host = Host::new();
    let a = Chain::new(&host, "a");
    let bursts = |network: Network<'_>| {
        let result = network.add(&a.sandbox);
        network.check(&a.sandbox, &result).ok();
        a.limits().map(|it| it.unwrap().1)
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
            for limit in [host.limit(link), sandbox.limit("eth0")] {
                let (held, burst) = limit.unwrap();
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
    let rates = a.limits().map(|it| it.unwrap().0);
    assert_eq!(rates, [1 << 20, 125_000]);
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
        assert!(a.has_backstop());
        for _ in 0..2 {
            assert_eq!(delete(&a).ok(), Value::Null);
            assert!(!a.has_backstop() && !record("a").exists());
        }
    }
    a.limited(0).add(&a.sandbox);
    host.bridge_v4().del(&a.sandbox);
    host.bandwidth().del(&a.sandbox);
    let left = host.snapshot().differences(&before);
    let of_the_pair = |it: &&String| !it.contains(a.host_link()) && !it.contains("lease");
    assert!(!left.iter().any(|it| of_the_pair(&it)), "{left:#?}");
}

#[test]
fn second_interface_of_a_container_has_limits_of_its_own() {
    let host = Host::new();
    let a = host.sandbox("a");
    let chain = |(interface, rate): (&str, u64)| {
        let bridge = host.bridge_v4().on("ADD", &a).ifname(interface).ok();
        let limited = host.bandwidth().with("prevResult", bridge);
        let limited = limited.with("egressRate", rate * 8);
        let run = |verb: &str| limited.on(verb, &a).ifname(interface);
        run("ADD").ok();
        run("CHECK").ok();
        assert_eq!(a.limit(interface).unwrap().0, rate);
    };
    [("eth0", 125_000), ("eth1", 250_000)]
        .into_iter()
        .for_each(chain);
    let delete = |interface: &str| host.bandwidth().on("DEL", &a).ifname(interface).ok();
    let owners = || {
        let rules = host.run("nft", &["list", "ruleset"]);
        ["eth0", "eth1"].map(|it| rules.contains(&format!("cni:pods/a/{it}")))
    };
    assert_eq!(owners(), [true, true]);
    delete("eth0");
    assert_eq!(owners(), [false, true]);
    delete("eth1");
    assert_eq!(owners(), [false, false]);
}

#[test]
fn gc_removes_backstops_and_records_of_unlisted_attachments() {
    let host = Host::new();
    let (a, b) = (Chain::new(&host, "a"), Chain::new(&host, "b"));
    for chain in [&a, &b] {
        chain.limited(0).add(&chain.sandbox);
    }
    let foreign = record("a").with_file_name("cni:other:a:eth0");
    fs::copy(record("a"), &foreign).unwrap();
    host.ip("link add ifb0 type ifb");
    host.bandwidth().gc(&[&b.sandbox]).ok();
    assert!(!a.has_backstop() && b.has_backstop());
    assert!(!record("a").exists() && record("b").exists() && foreign.exists());
    assert!(host.has_link("ifb0") && host.has_link(a.host_link()));
}

#[test]
fn check_reports_differences() {
    let host = Host::new();
    let a = Chain::new(&host, "a");
    let network = a.limited(0);
    let result = network.add(&a.sandbox);
    let link = a.host_link();
    let nsenter = format!("ip netns exec {}", a.sandbox.name());
    let tbf =
        |link: &str, rest: &str| format!("tc qdisc change dev {link} root handle b0: tbf {rest}");
    let own = "rate 20mbit burst 125000 limit 3000000";
    let changes = [
        (
            tbf(link, "rate 11mbit burst 62500 limit 93750"),
            [link, "1375000"],
        ),
        (
            tbf(link, "rate 10mbit burst 32000 limit 93750"),
            [link, "32000"],
        ),
        (format!("tc qdisc del dev {link} root"), [link, "no limit"]),
        (
            format!("{nsenter} {}", tbf("eth0", own)),
            ["eth0", "3000000"],
        ),
        (
            format!("{nsenter} tc qdisc del dev eth0 root"),
            ["eth0", "no limit"],
        ),
        ("nft flush ruleset".to_owned(), ["nf_tables", "reload"]),
    ];
    for (change, words) in changes {
        network.check(&a.sandbox, &result).ok();
        host.sh(&change);
        let refusal = network.check(&a.sandbox, &result).error();
        refusal.expect(100, &words);
        network.add(&a.sandbox);
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
    assert!(!record("a").exists());
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
