//! bridge and ptp: router advertisements that reach the interfaces of containers.

use std::fs;

use serde_json::{Value, json};
use tests::router_advertisement::{flooded, heard, traces};
use tests::{Host, Network, Place as _, Sandbox, eventually};

/// Enough advertisements to be sure that the kernel has processed the first one.
const PLENTY: u64 = 20;

fn gateway(host: &Host) -> Network<'_> {
    host.bridge().with("isDefaultGateway", true)
}

/// Returns a network of another router, with these ranges.
fn layer_2<'h>(host: &'h Host, subnets: &[&str]) -> Network<'h> {
    let ranges: Vec<_> = subnets.iter().map(|it| json!([{"subnet": it}])).collect();
    let network = host.bridge().with("isGateway", false);
    network.with("ipam.ranges", json!(ranges))
}

/// Returns `accept_ra` and `autoconf` of the container's interface.
fn settings(pod: &Sandbox) -> [String; 2] {
    ["accept_ra", "autoconf"].map(|it| pod.sysctl(&format!("net/ipv6/conf/eth0/{it}")).unwrap())
}

#[test]
fn pods_ignore_the_advertisements_of_another_pod_from_the_first_moment() {
    for is_ipv4_only in [false, true] {
        let host = Host::new();
        let rogue = host.sandbox("rogue");
        let mut network = gateway(&host);
        if is_ipv4_only {
            network = network.with("ipam.ranges", json!([[{"subnet": "10.1.0.0/24"}]]));
        }
        network.add(&rogue);
        flooded(&rogue, "eth0", || {
            for number in 0..4 {
                let pod = host.sandbox(&format!("p{number}"));
                network.add(&pod);
                assert!(eventually(|| heard(&pod, "eth0") >= PLENTY));
                assert_eq!(traces(&pod), Vec::<String>::new());
                let default = pod.ip("-6 route show default");
                let own = usize::from(!is_ipv4_only);
                assert_eq!(default.lines().count(), own, "{default}");
            }
        });
    }
}

#[test]
fn a_pod_whose_network_says_so_learns_its_route() {
    let host = Host::new();
    let [rogue, pod] = ["rogue", "pod"].map(|name| host.sandbox(name));
    gateway(&host).add(&rogue);
    gateway(&host).with("acceptRa", true).add(&pod);
    let learnt = || {
        traces(&pod)
            .iter()
            .any(|it| it.contains("default via fe80:"))
    };
    flooded(&rogue, "eth0", || assert!(eventually(learnt)));
}

/// Networks with the `accept_ra` and `autoconf` of their containers.
fn cases(host: &Host) -> Vec<(Network<'_>, [&'static str; 2])> {
    let (off, on) = (["0", "0"], ["1", "1"]);
    let v4 = || layer_2(host, &["10.1.0.0/24"]);
    let both = || layer_2(host, &["10.1.0.0/24", "fd00:1::/64"]);
    let bare = || v4().without("ipam");
    let down = bare().with("disableContainerInterface", true);
    vec![
        (v4(), on),
        (bare(), on),
        (gateway(host).without("ipam"), on),
        (v4().with("acceptRa", false), off),
        (bare().with("acceptRa", false), off),
        (down.with("acceptRa", false), off),
        (both(), off),
        (both().with("acceptRa", true), on),
        (host.bridge_v4(), off),
        (gateway(host).with("acceptRa", true), on),
        (host.ptp(), off),
        (host.ptp().with("acceptRa", true), on),
    ]
}

#[test]
fn the_network_decides_and_the_key_overrides_it() {
    let host = Host::new();
    let cases = cases(&host);
    for (number, (network, expected)) in cases.into_iter().enumerate() {
        let pod = host.sandbox(&format!("p{number}"));
        let network = network.with("name", format!("n{number}"));
        let result = network.add(&pod);
        assert_eq!(settings(&pod), expected, "{:?}", network.config());
        assert_eq!(network.check(&pod, &result).ok(), Value::Null);
        network.del(&pod);
        // Its address would conflict with the next gateway.
        if host.has_link("cni0") {
            host.ip("link delete cni0");
        }
    }
    let pod = host.sandbox("forbidden");
    for setting in ["accept_ra", "autoconf"] {
        pod.set_sysctl(&format!("net/ipv6/conf/default/{setting}"), "0");
    }
    gateway(&host).with("acceptRa", true).add(&pod);
    assert_eq!(settings(&pod), ["1", "1"]);
}

/// Such an IPAM plugin runs when the link is up.
#[test]
fn advertisements_are_ignored_before_an_ipam_plugin_uses_the_link() {
    let host = Host::new();
    let file = host.dir().join("seen");
    let lease = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]});
    let body = format!(
        "[ $CNI_COMMAND = ADD ] || exit 0
        nsenter --net=$CNI_NETNS cat /proc/sys/net/ipv6/conf/eth0/accept_ra > {}
        echo '{lease}'",
        file.display()
    );
    host.script("scripted", &body);
    let pod = host.sandbox("a");
    gateway(&host)
        .with("ipam", json!({"type": "scripted"}))
        .add(&pod);
    assert_eq!(fs::read_to_string(file).unwrap(), "0\n");
    assert_eq!(settings(&pod), ["0", "0"]);
}
