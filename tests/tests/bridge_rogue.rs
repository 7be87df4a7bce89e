//! bridge: router advertisements of rogue containers, which the host must ignore (CVE-2020-10749).
//!
//! If nothing may change, the kernel's counter shows that the advertisements arrived.

use std::thread;

use tests::router_advertisement::{PREFIX, flooded, heard, sent, traces};
use tests::{DEADLINE, Host, Network, Place, Sandbox, Snapshot, eventually};

/// Enough advertisements to be sure that the kernel has processed the first one.
const PLENTY: u64 = 20;

/// Checks that the host's IPv6 receives `PLENTY` advertisements from the bridge.
#[track_caller]
fn assert_heard(host: &Host) {
    let before = heard(host, "cni0");
    let came = eventually(|| heard(host, "cni0") >= before + PLENTY);
    assert!(came, "no router advertisement came within {DEADLINE:?}");
}

#[track_caller]
fn assert_unimpressed(host: &Host) {
    assert_eq!(traces(host), Vec::<String>::new());
    assert_eq!(host.ip("-6 route show default"), "");
}

/// Returns a snapshot after the kernel has completed IPv6 addresses and their routes in the
/// background.
fn settled_snapshot(host: &Host) -> Snapshot {
    let tentative = || host.ip("-6 address show scope global tentative");
    assert!(eventually(|| tentative().is_empty()));
    // The kernel makes this route last.
    if host.sysctl("net/ipv6/conf/cni0/disable_ipv6").as_deref() == Some("0") {
        let multicast = || host.ip("-6 route show table local type multicast dev cni0");
        assert!(eventually(|| !multicast().is_empty()));
    }
    host.snapshot()
}

/// Returns networks for which the host does not forward IPv6, so only the bridge's sysctl protects
/// it, and one for which it does.
fn networks(host: &Host) -> [Network<'_>; 3] {
    [
        host.bridge_v4(),
        host.bridge().with("isGateway", false),
        host.bridge(),
    ]
}

/// Creates a sandbox at a bridge port without an ADD.
fn rogue_by_hand(host: &Host) -> Sandbox {
    let rogue = host.sandbox("rogue");
    rogue.set_sysctl("net/ipv6/conf/default/accept_dad", "0");
    host.ip("link add port type veth peer name eth0 netns rogue");
    host.ip("link set port master cni0 up");
    rogue.ip("link set eth0 up");
    rogue
}

#[test]
fn an_accepting_link_takes_route_address_and_settings_from_the_same_router_advertisement() {
    let host = Host::new();
    let outside = host.outside();
    assert_eq!(host.sysctl("net/ipv6/conf/uplink/accept_ra").unwrap(), "1");
    assert_eq!(host.sysctl("net/ipv6/conf/all/forwarding").unwrap(), "0");
    let before = host.snapshot();
    assert_unimpressed(&host);
    flooded(&outside, "outside", || {
        for trace in [
            "default via fe80:",
            "inet6 2001:db8:bad:",
            "hop_limit is 42",
            "mtu is 1281",
            "base_reachable_time_ms is 12000",
            "retrans_time_ms is 2000",
        ] {
            let is_there = || traces(&host).iter().any(|line| line.contains(trace));
            assert!(eventually(is_there), "{trace}: {:#?}", traces(&host));
        }
    });
    assert!(heard(&host, "uplink") > 0);
    let changes = host.snapshot().differences(&before);
    for change in ["default via fe80:", "address uplink 2001:db8:bad:"] {
        assert!(
            changes.iter().any(|it| it.contains(change)),
            "{change}: {changes:#?}"
        );
    }
}

#[test]
fn an_untouched_bridge_accepts_the_same_router_advertisement() {
    let host = Host::new();
    host.ip("link add cni0 type bridge");
    host.ip("link set cni0 up");
    let rogue = rogue_by_hand(&host);
    flooded(&rogue, "eth0", || {
        let learnt = || host.ip("-6 route show default").contains("dev cni0");
        assert!(eventually(learnt));
    });
    assert!(host.addresses("cni0")[0].starts_with(PREFIX));
}

#[test]
fn nothing_changes_on_the_host_after_an_add() {
    for number in 0..3 {
        let host = Host::new();
        // With 2 the kernel accepts routers even while it forwards.
        host.set_sysctl("net/ipv6/conf/default/accept_ra", "2");
        let rogue = host.sandbox("rogue");
        networks(&host)[number].add(&rogue);
        let before = settled_snapshot(&host);
        flooded(&rogue, "eth0", || assert_heard(&host));
        assert_unimpressed(&host);
        host.snapshot().assert_same_as(&before);
    }
}

#[test]
fn nothing_changes_on_the_host_during_adds_and_dels_of_others() {
    for number in 0..3 {
        let host = Host::new();
        host.set_sysctl("net/ipv6/conf/default/accept_ra", "2");
        let rogue = host.sandbox("rogue");
        let network = &networks(&host)[number];
        network.add(&rogue);
        let before = settled_snapshot(&host);
        flooded(&rogue, "eth0", || {
            assert_heard(&host);
            for number in 0..5 {
                let pod = host.sandbox(&format!("p{number}"));
                network.add(&pod);
                assert_heard(&host);
                assert_unimpressed(&host);
                network.del(&pod);
                assert_unimpressed(&host);
            }
        });
        host.snapshot().assert_same_as(&before);
    }
}

#[test]
fn nothing_changes_on_the_host_while_the_flooding_sandbox_itself_comes_and_goes() {
    let host = Host::new();
    let rogue = host.sandbox("rogue");
    let network = host.bridge_v4();
    flooded(&rogue, "eth0", || {
        for _ in 0..5 {
            network.add(&rogue);
            assert_heard(&host);
            assert_unimpressed(&host);
            network.del(&rogue);
            assert_unimpressed(&host);
        }
    });
}

#[test]
fn a_bridge_that_comes_up_in_a_flood_ignores_router_advertisements() {
    for round in 0..5 {
        let host = Host::new();
        host.ip("link add cni0 type bridge");
        assert_eq!(host.sysctl("net/ipv6/conf/cni0/accept_ra").unwrap(), "1");
        let rogue = rogue_by_hand(&host);
        flooded(&rogue, "eth0", || {
            assert!(eventually(|| sent(&rogue, "eth0") > PLENTY));
            assert_eq!(heard(&host, "cni0"), 0, "the bridge is down");
            host.bridge_v4().add(&host.sandbox("a"));
            assert_heard(&host);
        });
        assert_eq!(traces(&host), Vec::<String>::new(), "round {round}");
        assert_unimpressed(&host);
    }
}

#[test]
fn a_foreign_bridge_ignores_router_advertisements_after_an_add_of_a_gateway() {
    for number in [0, 2] {
        let host = Host::new();
        host.ip("link add cni0 type bridge");
        host.ip("link set cni0 up");
        assert_eq!(host.sysctl("net/ipv6/conf/cni0/accept_ra").unwrap(), "1");
        let rogue = host.sandbox("rogue");
        networks(&host)[number].add(&rogue);
        let before = settled_snapshot(&host);
        flooded(&rogue, "eth0", || assert_heard(&host));
        assert_unimpressed(&host);
        host.snapshot().assert_same_as(&before);
    }
}

/// Returns all IP settings of a bridge.
fn settings(host: &Host, bridge: &str) -> Vec<String> {
    // Some cannot be read.
    let all = host.sh(&format!(
        "grep -s . -r /proc/sys/net/ipv[46]/*/{bridge} || true"
    ));
    all.lines().map(str::to_owned).collect()
}

/// The bridge of another program carries the host's uplink and the LAN's router.
#[test]
fn an_uplink_bridge_keeps_its_router_after_an_add_of_layer_2() {
    let host = Host::new();
    let outside = host.outside();
    host.ip("link add br0 type bridge");
    host.ip("link set br0 up");
    host.ip("link set uplink master br0");
    host.set_sysctl("net/ipv6/conf/br0/accept_ra", "2");
    let before = settings(&host, "br0");
    let accepting = "/proc/sys/net/ipv6/conf/br0/accept_ra:2".to_owned();
    assert!(before.contains(&accepting), "{before:?}");
    let layer_2 = || {
        host.bridge_v4()
            .with("bridge", "br0")
            .with("isGateway", false)
    };
    let networks = [
        layer_2(),
        layer_2().without("ipam"),
        layer_2().with("isGateway", true).without("ipam"),
    ];
    for (number, network) in networks.iter().enumerate() {
        network.add(&host.sandbox(&format!("p{number}")));
        let mut changed = settings(&host, "br0");
        changed.retain(|it| !before.contains(it));
        assert_eq!(changed, Vec::<String>::new());
    }
    flooded(&outside, "outside", || {
        let learnt = || host.ip("-6 route show default").contains("dev br0");
        assert!(eventually(learnt));
    });
}

#[test]
fn a_bridge_with_an_alternative_name_ignores_router_advertisements_after_an_add() {
    let host = Host::new();
    host.ip("link add br-other type bridge");
    host.ip("link property add dev br-other altname cni0");
    host.ip("link set br-other up");
    let rogue = host.sandbox("rogue");
    host.bridge_v4().add(&rogue);
    flooded(&rogue, "eth0", || {
        assert!(eventually(|| heard(&host, "br-other") >= PLENTY));
    });
    assert_unimpressed(&host);
}

#[test]
fn a_bridge_of_concurrent_adds_ignores_router_advertisements() {
    let host = Host::new();
    let pods = ["a", "b", "c", "d"].map(|name| host.sandbox(name));
    let network = host.bridge_v4();
    for _ in 0..3 {
        flooded(&pods[0], "eth0", || {
            thread::scope(|scope| {
                for pod in &pods {
                    scope.spawn(|| network.add(pod));
                }
            });
            assert_heard(&host);
        });
        assert_unimpressed(&host);
        for pod in &pods {
            network.del(pod);
        }
        host.ip("link delete cni0");
    }
}

#[test]
fn a_flood_does_not_keep_other_sandboxes_from_being_attached() {
    let host = Host::new();
    let rogue = host.sandbox("rogue");
    let network = host.bridge().with("isDefaultGateway", true);
    network.add(&rogue);
    flooded(&rogue, "eth0", || {
        assert_heard(&host);
        for number in 0..12 {
            let pod = host.sandbox(&format!("p{number}"));
            network.add(&pod);
            // A flood may cause the loss of single packets.
            for gateway in ["10.1.0.1", "fd00:1::1"] {
                assert!(eventually(|| pod.pings(gateway)), "{gateway}");
            }
            network.del(&pod);
        }
    });
    assert_unimpressed(&host);
}
