//! bridge among many other attachments: bytes that an operation receives for each of them.
//!
//! `scripts/bench.sh` measures times. The kernel's data is the same on every machine: 1,500 bytes
//! for another container's link, 116 for a route, 60 and more for an element.

use serde_json::json;
use tests::faults::Trace;
use tests::{Host, Invocation, Network, Place as _, Sandbox, at_once};

/// Returns a network with enough addresses.
fn network(host: &Host) -> Network<'_> {
    let network = host.bridge_v4().with("cniVersion", "1.1.0");
    network.with("ipam.ranges", json!([[{"subnet": "10.1.0.0/16"}]]))
}

fn guarded(host: &Host) -> Network<'_> {
    let network = network(host).with("ipMasq", true);
    network.with("macspoofchk", true).with("mtu", 1500)
}

/// Attaches more sandboxes, a few at once.
fn attach(network: &Network<'_>, host: &Host, numbers: std::ops::Range<usize>) {
    let pods: Vec<_> = numbers
        .map(|number| host.sandbox(&format!("p{number}")))
        .collect();
    for some in pods.chunks(10) {
        at_once(some, |pod| network.add(pod));
    }
}

/// Returns the bytes that each operation on another sandbox receives.
fn received(host: &Host, network: &Network<'_>, pod: &Sandbox) -> [(&'static str, usize); 4] {
    let file = host.dir().join("calls");
    let bytes = |call: &Invocation| Trace::of(call, &file).received();
    let add = bytes(&network.on("ADD", pod));
    network.del(pod);
    let result = network.add(pod);
    let check = bytes(&network.check(pod, &result));
    let status = bytes(&network.call("STATUS"));
    let del = bytes(&network.on("DEL", pod));
    assert!(!pod.has_link("eth0"));
    [
        ("ADD", add),
        ("CHECK", check),
        ("STATUS", status),
        ("DEL", del),
    ]
}

/// Bytes per sandbox for events: ADD and DEL receive up to six messages more on a busy machine. The
/// smallest data about each sandbox, an element, has 60 bytes.
const A_FEW: usize = 30;

/// Checks that operations receive at most this many bytes for each of the other sandboxes.
#[track_caller]
fn expect_growth(host: &Host, network: &Network<'_>, most: [(&str, usize); 4]) {
    const FEW: usize = 10;
    const MANY: usize = 310;
    let _outside = host.outside();
    host.ip("route add default via 192.0.2.2");
    let pod = host.sandbox("one-more");
    attach(network, host, 0..FEW);
    let among_few = received(host, network, &pod);
    attach(network, host, FEW..MANY);
    let among_many = received(host, network, &pod);
    assert_eq!(network.add(&pod)["ips"].as_array().map(Vec::len), Some(1));
    assert!(pod.pings("10.1.0.1") && pod.pings("10.1.0.2"));
    for ((few, many), (verb, most)) in among_few.iter().zip(among_many).zip(most) {
        assert_eq!((few.0, many.0), (verb, verb));
        assert!(few.1 > 0, "{verb} receives nothing: {few:?}");
        let growth = many.1.saturating_sub(few.1) / (MANY - FEW);
        println!("{verb}: {} bytes, then {}, {growth} a pod", few.1, many.1);
        assert!(growth <= most, "{verb} receives {growth} bytes of each pod");
    }
}

#[test]
fn operations_do_not_list_each_pod() {
    let host = Host::new();
    // STATUS counts the ports.
    let most = [("ADD", A_FEW), ("CHECK", 4), ("STATUS", 600), ("DEL", 60)];
    expect_growth(&host, &network(&host), most);
}

#[test]
fn only_del_of_a_guarded_pod_lists_each_element() {
    let host = Host::new();
    // DEL knows neither addresses nor MACs and finds its elements by their owner.
    let elements = 300;
    let most = [
        ("ADD", A_FEW),
        ("CHECK", 4),
        ("STATUS", 600),
        ("DEL", elements + 60),
    ];
    expect_growth(&host, &guarded(&host), most);
}

#[test]
fn ports_add_nothing_to_the_routes_of_the_host() {
    let host = Host::new();
    let pods = ["a", "b"].map(|name| host.sandbox(name));
    for pod in &pods {
        let result = host.bridge().add(pod);
        let port = result["interfaces"][1]["name"].as_str().unwrap();
        assert!(host.link_local_addresses(port).is_empty());
        assert!(pod.pings("fd00:1::1"));
        let routes = host.ip("-6 route show table all");
        assert!(!routes.contains(&format!("dev {port} ")), "{routes}");
    }
    assert!(pods[1].pings("fd00:1::2"));
}
