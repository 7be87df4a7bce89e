//! bridge: the configured or detected MTU.

use serde_json::Value;
use tests::faults::Trace;
use tests::{Host, Network, Outcome, Place as _, Sandbox};

/// Returns the MTU of both ends after an ADD; they must be equal.
fn mtu(host: &Host, network: &Network<'_>, sandbox: &Sandbox) -> (u64, Outcome) {
    let outcome = network.on("ADD", sandbox).run();
    let result = outcome.ok();
    let host_link = host.link(result["interfaces"][1]["name"].as_str().unwrap());
    let container_link = sandbox.link("eth0");
    assert_eq!(host_link["mtu"], container_link["mtu"]);
    (container_link["mtu"].as_u64().unwrap(), outcome)
}

/// Returns a host whose only uplink has this MTU.
fn host_with_uplink(mtu: u32, family: &str) -> (Host, Sandbox) {
    let host = Host::new();
    let outside = host.outside();
    host.ip(&format!("link set uplink mtu {mtu}"));
    match family {
        "inet" => host.ip("route add default via 192.0.2.2"),
        _ => host.ip("-6 route add default via fe80::1 dev uplink"),
    };
    (host, outside)
}

#[test]
fn an_mtu_that_was_asked_for_is_taken() {
    let (host, _outside) = host_with_uplink(1400, "inet");
    let network = host.bridge().with("mtu", 1300);
    assert_eq!(mtu(&host, &network, &host.sandbox("a")).0, 1300);
    let network = host.bridge().with("mtu", 9000);
    assert_eq!(mtu(&host, &network, &host.sandbox("b")).0, 9000);
}

#[test]
fn the_mtu_is_that_of_the_default_routes_link() {
    for family in ["inet", "inet6"] {
        let (host, _outside) = host_with_uplink(1400, family);
        let (detected, outcome) = mtu(&host, &host.bridge(), &host.sandbox("a"));
        assert_eq!(detected, 1400, "{family}");
        assert_eq!(outcome.stderr, "", "{family}");
        let zero = host.bridge().with("mtu", 0);
        assert_eq!(mtu(&host, &zero, &host.sandbox("b")).0, 1400);
    }
}

#[test]
fn a_default_route_through_the_loopback_link_says_nothing_about_the_mtu() {
    let host = Host::new();
    host.ip("link set lo up");
    host.ip("route add default dev lo");
    assert_eq!(mtu(&host, &host.bridge(), &host.sandbox("a")).0, 1500);
}

#[test]
fn the_mtu_is_the_smallest_of_several_default_routes() {
    let (host, outside) = host_with_uplink(1450, "inet");
    host.ip("link add second mtu 1350 type veth peer name second netns outside");
    host.ip("link set second up");
    outside.ip("link set second up");
    host.ip("-6 route add default via fe80::2 dev second");
    assert_eq!(mtu(&host, &host.bridge(), &host.sandbox("a")).0, 1350);
}

#[test]
fn virtual_links_without_a_default_route_do_not_count() {
    let host = Host::new();
    let _outside = host.outside();
    host.ip("link set uplink mtu 1300");
    assert_eq!(mtu(&host, &host.bridge(), &host.sandbox("a")).0, 1500);
}

#[test]
fn the_overhead_is_subtracted_from_what_is_detected() {
    let (host, _outside) = host_with_uplink(1400, "inet");
    let network = host.bridge().with("mtuOverhead", 50);
    assert_eq!(mtu(&host, &network, &host.sandbox("a")).0, 1350);
}

#[test]
fn large_packets_pass_and_larger_ones_do_not() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = host.bridge().with("mtu", 1400);
    network.add(&a);
    network.add(&b);
    let whole = |size: &str| {
        let arguments = ["-n", "-c1", "-W2", "-Mdo", "-s", size, "10.1.0.3"];
        a.enter(|| {
            std::process::Command::new("ping")
                .args(arguments)
                .output()
                .unwrap()
                .status
                .success()
        })
    };
    assert!(whole("1372") && !whole("1373"));
}

#[test]
fn an_mtu_out_of_range_is_refused_with_its_value() {
    let host = Host::new();
    let a = host.sandbox("a");
    for value in [
        67.into(),
        65_536.into(),
        70_000.into(),
        (-1).into(),
        "1400".into(),
        1400.5.into(),
    ] {
        let value: Value = value;
        let asked = host.bridge().with("mtu", value.clone());
        asked
            .on("ADD", &a)
            .error()
            .expect(7, &["mtu", value.to_string().trim_matches('"')]);
    }
    // IPv6 requires 1280.
    host.bridge()
        .with("mtu", 1279)
        .on("ADD", &a)
        .error()
        .expect(7, &["mtu", "1279"]);
    host.bridge()
        .with("mtuOverhead", 1500)
        .on("ADD", &a)
        .error()
        .expect(7, &["mtuOverhead", "1500"]);
    assert!(!a.has_link("eth0") && host.leases("pods").is_empty());
}

#[test]
fn check_does_not_detect_again() {
    let (host, _outside) = host_with_uplink(1400, "inet");
    let a = host.sandbox("a");
    let network = host.bridge().with("cniVersion", "1.1.0");
    let result = network.add(&a);
    host.ip("link set uplink mtu 1300");
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
}

#[test]
fn detection_does_not_read_every_route() {
    const ROUTES: u16 = 2000;
    let (host, _outside) = host_with_uplink(1400, "inet");
    host.ip("-6 route add default via fe80::1 dev uplink");
    let file = host.dir().join("calls");
    let received = |name: &str| {
        let add = host.bridge().on("ADD", &host.sandbox(name));
        Trace::of(&add, &file).received()
    };
    host.bridge().add(&host.sandbox("first"));
    let without = received("a");
    let routes = (0..ROUTES).map(|number| {
        let [high, low] = number.to_be_bytes();
        format!(
            "route add 30.{high}.{low}.0/24 via 192.0.2.2\n\
             route add 2a00:{number:x}::/32 via fe80::1 dev uplink\n"
        )
    });
    let batch = host.dir().join("routes");
    std::fs::write(&batch, routes.collect::<String>()).unwrap();
    host.run("ip", &["-batch", batch.to_str().unwrap()]);
    let with = received("b");
    assert!(without > 0 && with < without + 4096, "{without}, {with}");
    assert_eq!(mtu(&host, &host.bridge(), &host.sandbox("c")).0, 1400);
}

#[test]
fn routes_to_either_half_of_all_addresses_do_not_hide_the_default_route() {
    for halves in [
        &["0.0.0.0/1", "128.0.0.0/1"][..],
        &["203.0.113.0/24", "blackhole 240.0.0.0/4", "30.0.0.0/8"],
    ] {
        let (host, _outside) = host_with_uplink(1400, "inet");
        host.ip("link add tunnel mtu 1300 type veth peer name lennut");
        host.ip("link set tunnel up");
        for half in halves {
            let link = if half.contains("hole") {
                ""
            } else {
                "dev tunnel"
            };
            host.ip(&format!("route add {half} {link}"));
        }
        assert_eq!(mtu(&host, &host.bridge(), &host.sandbox("a")).0, 1400);
    }
}

#[test]
fn every_link_of_a_multipath_default_route_counts() {
    for (family, hop) in [("-4", "via inet6 fe80::1"), ("-6", "via fe80::1")] {
        let host = Host::new();
        let outside = host.outside();
        host.ip("link set uplink mtu 1450");
        host.ip("link add second mtu 1350 type veth peer name second netns outside");
        host.ip("link set second up");
        outside.ip("link set second up");
        let hops = ["uplink", "second"].map(|link| format!("nexthop {hop} dev {link}"));
        host.ip(&format!("{family} route add default {}", hops.join(" ")));
        assert_eq!(mtu(&host, &host.bridge(), &host.sandbox("a")).0, 1350);
    }
}
