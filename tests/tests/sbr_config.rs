//! sbr: its keys, the routes that it finds, and what it refuses.

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Sandbox};

/// A pod on a bridge of both families without default routes.
struct Pod<'h> {
    host: &'h Host,
    a: Sandbox,
    result: Value,
}

impl<'h> Pod<'h> {
    fn new(host: &'h Host) -> Self {
        let a = host.sandbox("a");
        let result = host.bridge().add(&a);
        Self { host, a, result }
    }

    fn sbr(&self) -> Network<'h> {
        let network = self.host.bandwidth().with("type", "sbr");
        network.with("prevResult", self.result.clone())
    }

    fn table(&self, words: &str) -> String {
        self.a.ip(&format!("{words} route show table all"))
    }
}

#[test]
fn table_is_only_looked_up() {
    let host = Host::new();
    let pod = Pod::new(&host);
    let before = [pod.table("-4"), pod.table("-6")];
    let network = pod.sbr().with("table", 4_000_000_000_u32);
    for network in [
        network.clone(),
        network.clone().with("addSourceHints", true),
    ] {
        assert_eq!(network.add(&pod.a), pod.result);
        assert_eq!([pod.table("-4"), pod.table("-6")], before);
        for (family, source) in [("-4", "10.1.0.2"), ("-6", "fd00:1::2")] {
            let rules = pod.a.ip(&format!("{family} rule"));
            assert!(
                rules.contains(&format!("from {source} lookup 4000000000")),
                "{rules}"
            );
        }
        assert_eq!(network.check(&pod.a, &pod.result).ok(), Value::Null);
        network.del(&pod.a);
        let check = network.check(&pod.a, &pod.result);
        check.error().expect(
            100,
            &["no rule `from 10.1.0.2 lookup 4000000000`", "fd00:1::2"],
        );
    }
    let status = network
        .with("cniVersion", "1.1.0")
        .with("gateways", json!(["10.1.0.9"]));
    let told = status.call("STATUS").run();
    assert!(told.stderr.contains("gateways has no effect"), "{told:?}");
}

#[test]
fn gateways_take_precedence_over_those_of_the_addresses() {
    let host = Host::new();
    let pod = Pod::new(&host);
    pod.a.ip("route add default via 10.1.0.1");
    let gateways = json!(["fd00:1::9", "::ffff:10.1.0.9"]);
    let network = pod.sbr().with("gateways", gateways);
    network.add(&pod.a);
    let v4 = pod.a.ip("route show table 100");
    let v6 = pod.a.ip("-6 route show table 101");
    assert!(v4.contains("default via 10.1.0.9 dev eth0"), "{v4}");
    assert!(!v4.contains("10.1.0.1 "), "{v4}");
    assert!(v6.contains("default via fd00:1::9 dev eth0"), "{v6}");
    assert_eq!(network.check(&pod.a, &pod.result).ok(), Value::Null);
}

#[test]
fn check_of_the_interface_accepts_configured_gateways_and_moved_routes() {
    let host = Host::new();
    let a = host.sandbox("a");
    let routes = json!([{"dst": "10.9.0.0/16", "gw": "10.1.0.7", "table": 254}]);
    let bridge = host.bridge().with("isDefaultGateway", true);
    let bridge = bridge.with("ipam.routes", routes);
    let before = bridge.add(&a);
    let sbr = host.bandwidth().with("type", "sbr");
    let sbr = sbr.with("gateways", json!(["10.1.0.9"]));
    let result = sbr.with("prevResult", before.clone()).add(&a);
    let gateways = |result: &Value| {
        let routes = result["routes"].as_array().unwrap().clone();
        let gateways = routes.into_iter().map(|it| it["gw"].clone());
        gateways.collect::<Vec<_>>()
    };
    assert_eq!(gateways(&before)[1..], ["10.1.0.1", "fd00:1::1"]);
    assert_eq!(gateways(&result)[1..], ["10.1.0.9", "fd00:1::1"]);
    assert_eq!(bridge.check(&a, &result).ok(), Value::Null);
    a.ip("route del default table 100");
    let check = bridge.check(&a, &result);
    check
        .error()
        .expect(100, &["eth0 lacks the route to 0.0.0.0/0"]);
}

#[test]
fn source_hints_keep_the_subnets_in_the_table_main() {
    let host = Host::new();
    let pod = Pod::new(&host);
    pod.a.ip("route add 10.9.0.0/16 via 10.1.0.1");
    pod.a.ip("route add 10.8.0.0/16 dev eth0 scope link");
    let network = pod.sbr().with("addSourceHints", true);
    network.add(&pod.a);
    let main = pod.a.ip("route show table main");
    assert!(
        main.contains("10.1.0.0/24 dev eth0 scope link src 10.1.0.2"),
        "{main}"
    );
    assert!(
        main.contains("10.8.0.0/16") && !main.contains("10.9.0.0/16"),
        "{main}"
    );
    let main = pod.a.ip("-6 route show table main");
    assert!(
        main.contains("fd00:1::/64 dev eth0 src fd00:1::2"),
        "{main}"
    );
    assert!(
        pod.a
            .ip("route show table 100")
            .contains("10.9.0.0/16 via 10.1.0.1")
    );
    assert!(pod.a.pings("10.1.0.1") && pod.a.pings("fd00:1::1"));
    assert!(!pod.a.ip("route").contains("default"));
}

/// Gives the pod another interface, and default routes through both. The kernel makes one multipath
/// route of two IPv6 default routes of the same metric.
fn give_multipath_routes(host: &Host, pod: &Pod<'_>) {
    let other = host.bridge().with("bridge", "cni2").with("name", "other");
    let ranges = json!([[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]]);
    let other = other.with("ipam.ranges", ranges);
    other.on("ADD", &pod.a).ifname("net2").ok();
    pod.a.ip("-6 route add default via fd00:2::1 dev net2");
    pod.a.ip("-6 route append default via fd00:1::1 dev eth0");
    pod.a.ip(
        "route add default nexthop via 10.2.0.1 dev net2 nexthop via 10.1.0.1 dev eth0 weight 3",
    );
}

#[test]
fn next_hop_of_a_multipath_route_is_moved_without_those_of_other_interfaces() {
    let host = Host::new();
    let pod = Pod::new(&host);
    give_multipath_routes(&host, &pod);
    let before = [pod.a.ip("route"), pod.a.ip("-6 route")];
    assert!(before[1].contains("nexthop"), "{before:?}");
    let broken = pod.sbr().with("gateways", json!(["10.77.0.1"]));
    broken.on("ADD", &pod.a).error().expect(100, &["10.77.0.1"]);
    assert_eq!(
        [pod.a.ip("route"), pod.a.ip("-6 route")],
        before,
        "restored"
    );
    let network = pod.sbr();
    network.add(&pod.a);
    let main = [
        pod.a.ip("route show default"),
        pod.a.ip("-6 route show default"),
    ]
    .concat();
    for (hop, is_left) in [
        ("via 10.2.0.1 dev net2", true),
        ("via fd00:2::1 dev net2", true),
        ("dev eth0", false),
    ] {
        assert_eq!(main.contains(hop), is_left, "{main}");
    }
    let own = [
        pod.a.ip("route show table 100"),
        pod.a.ip("-6 route show table 101"),
    ]
    .concat();
    for hop in ["via 10.1.0.1 dev eth0", "via fd00:1::1 dev eth0"] {
        assert!(own.contains(hop), "{own}");
    }
    assert!(!own.contains("net2"), "{own}");
}

/// Router advertisements and routed networks have such gateways.
#[test]
fn default_routes_whose_gateway_is_in_no_subnet_are_kept() {
    let host = Host::new();
    let pod = Pod::new(&host);
    pod.a.ip("route add 169.254.1.1 dev eth0 scope link");
    pod.a
        .ip("route add default via 169.254.1.1 dev eth0 metric 5 mtu 1400");
    pod.a
        .ip("-6 route add default via fe80::1 dev eth0 metric 7 expires 900");
    let mut result = pod.result.clone();
    for ip in result["ips"].as_array_mut().unwrap() {
        ip.as_object_mut().unwrap().remove("gateway");
    }
    let network = pod.sbr().with("prevResult", result.clone());
    network.add(&pod.a);
    let v4 = pod.a.ip("route show table 100");
    assert!(
        v4.contains("default via 169.254.1.1 dev eth0 metric 5 mtu 1400"),
        "{v4}"
    );
    let v6 = pod.a.ip("-6 route show table 101");
    assert!(
        v6.contains("default via fe80::1 dev eth0 metric 7 expires"),
        "{v6}"
    );
    let main = pod.a.ip("-6 route");
    assert!(main.contains("fe80::/64 dev eth0"), "{main}");
    assert!(!main.contains("default"), "{main}");
}

#[test]
fn addresses_of_other_interfaces_are_not_routed() {
    let host = Host::new();
    let pod = Pod::new(&host);
    let before = pod.table("-4");
    let mut result = pod.result.clone();
    for ip in result["ips"].as_array_mut().unwrap() {
        ip["interface"] = json!(0);
    }
    let network = pod.sbr().with("prevResult", result.clone());
    let outcome = network.on("ADD", &pod.a).run();
    assert!(outcome.stderr.contains("no address of eth0"), "{outcome:?}");
    assert_eq!(outcome.ok(), result);
    assert_eq!(
        pod.table("-4"),
        before,
        "no route is taken from the interface"
    );
    assert!(!pod.a.ip("rule").contains("lookup 100"));
}

#[test]
fn invalid_values_are_refused_before_anything_changes() {
    let host = Host::new();
    let pod = Pod::new(&host);
    let before = (pod.a.ip("rule"), pod.table("-4"));
    for (key, value, words) in [
        ("table", json!(0), "0 is no table"),
        ("table", json!(-1), "table"),
        ("table", json!(4_294_967_296_u64), "table"),
        ("table", json!("100"), "table"),
        (
            "gateways",
            json!(["10.1.0.1", "10.1.0.9"]),
            "only one for each family",
        ),
        (
            "gateways",
            json!(["10.1.0.1", "fd00::1", "fd00::2"]),
            "only one",
        ),
        ("gateways", json!(["10.1.0.0/24"]), "gateways"),
        ("gateways", json!("10.1.0.1"), "gateways"),
        ("addSourceHints", json!("yes"), "addSourceHints"),
        ("prevResult.ips", json!([]), "eth0 has no address"),
    ] {
        let refusal = pod.sbr().with(key, value).on("ADD", &pod.a).error();
        refusal.expect(7, &[words]);
    }
    let first = pod.sbr().without("prevResult").on("ADD", &pod.a).error();
    first.expect(7, &["prevResult", "chain"]);
    let missing = pod.sbr().on("ADD", &pod.a).ifname("net7");
    missing.error().expect(100, &["net7"]);
    assert_eq!((pod.a.ip("rule"), pod.table("-4")), before);
    assert!(!std::path::Path::new("/run/cni/sbr").exists());
}
