//! Tests the checks of ranges with fictitious links, addresses and routes.

use netlink::Address;
use serde_json::{Value, json};

use super::super::finding::Level;
use super::super::tests::{attached, lease, levels, link, node};
use super::*;

fn list(name: &str, ipam: &Value) -> String {
    let ipam = ipam.as_object().unwrap();
    let mut all = json!({"type": "host-local"});
    all.as_object_mut().unwrap().extend(ipam.clone());
    json!({"name": name, "plugins": [{"type": "bridge", "ipam": all}]}).to_string()
}

/// Returns a node with one network of this subnet. The node's links eth0 and cni0 have these
/// addresses.
fn with_addresses(subnet: &str, eth0: &str, cni0: &str) -> Node {
    let mut node = node(&[("pods.conflist", &list("pods", &json!({"subnet": subnet})))]);
    node.links = vec![link(2, "eth0"), link(3, "cni0")];
    let address = |link, text: &str| Address {
        link,
        address: text.parse().unwrap(),
        is_tentative: false,
        is_duplicate: false,
        is_link_local: false,
        expires: false,
    };
    node.addresses = vec![address(2, eth0), address(3, cni0)];
    node
}

#[test]
fn ranges_apart_are_well() {
    let findings = judge(&with_addresses(
        "10.1.0.0/16",
        "192.0.2.1/24",
        "10.1.0.1/16",
    ));
    assert_eq!(levels(&findings), [Level::Ok]);
    assert_eq!(judge(&node(&[])), []);
}

#[test]
fn networks_that_lease_the_same_addresses_are_reported() {
    let one = list("one", &json!({"ranges": [[{"subnet": "10.1.0.0/16"}]]}));
    for (ipam, is_overlapping) in [
        (json!({"subnet": "10.1.7.0/24"}), true),
        (json!({"subnet": "10.2.0.0/16"}), false),
        (
            json!({"subnet": "10.0.0.0/8", "rangeEnd": "10.0.9.9"}),
            false,
        ),
        (json!({"subnet": "fd00::/64"}), false),
        (json!({"subnet": "nonsense"}), false),
    ] {
        let other = list("other", &ipam);
        let findings = judge(&node(&[("1.conflist", &one), ("2.conflist", &other)]));
        let is_reported = findings.iter().any(|it| it.level == Level::Warning);
        assert_eq!(is_reported, is_overlapping, "{ipam} {findings:?}");
    }
    let both = json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "10.1.2.0/24"}]]);
    let findings = judge(&node(&[(
        "1.conflist",
        &list("one", &json!({"ranges": both})),
    )]));
    assert_eq!(levels(&findings), [Level::Problem]);
}

#[test]
fn networks_of_other_links_are_reported() {
    for (eth0, level) in [
        ("10.1.0.9/16", Level::Problem),
        ("10.1.7.9/24", Level::Problem),
        ("10.0.0.9/8", Level::Warning),
        ("10.1.0.9/8", Level::Problem),
        ("10.2.0.9/16", Level::Ok),
    ] {
        let findings = judge(&with_addresses("10.1.0.0/16", eth0, "10.1.0.1/16"));
        assert_eq!(levels(&findings), [level], "{eth0} {findings:?}");
    }
}

#[test]
fn a_wider_network_of_another_link_is_a_problem_where_add_refuses_the_gateway() {
    let known = ["10.1.0.1", "10.1.0.2"].map(|it| it.parse().unwrap());
    for (keys, cni0, neighbour, level) in [
        ("", "192.0.2.1/24", known[0], Level::Warning),
        (GATEWAY, "192.0.2.1/24", known[0], Level::Problem),
        (GATEWAY, "192.0.2.1/24", known[1], Level::Warning),
        (GATEWAY, "10.1.0.1/16", known[0], Level::Warning),
    ] {
        let mut node = with_addresses("10.1.0.0/16", "10.0.0.9/8", cni0);
        let ipam = r#""ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}"#;
        let list =
            format!(r#"{{"name": "pods", "plugins": [{{"type": "bridge", {keys}{ipam}}}]}}"#);
        node.configuration = super::super::tests::node(&[("pods.conflist", &list)]).configuration;
        node.links[0].mac = Some(netlink::MacAddress([2, 0, 0, 0, 0, 1]));
        node.neighbours = vec![netlink::Neighbour {
            link: 2,
            address: neighbour,
            is_permanent: true,
        }];
        let findings = judge(&node);
        assert_eq!(levels(&findings), [level], "{keys} {findings:?}");
    }
}

const GATEWAY: &str = r#""isGateway": true, "#;

#[test]
fn full_ranges_are_reported() {
    let ipam = json!({"subnet": "10.1.0.0/28", "rangeEnd": "10.1.0.6", "exclude": ["10.1.0.3"]});
    let mut node = node(&[("pods.conflist", &list("pods", &ipam))]);
    let leases = ["10.1.0.2", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.9"];
    let leases: Vec<_> = leases.iter().map(|it| lease("pods", it, "c1")).collect();
    for (held, level) in [(3, Level::Ok), (4, Level::Problem), (5, Level::Problem)] {
        node.leases = leases.iter().take(held).cloned().collect();
        assert_eq!(levels(&judge(&node)), [level], "{held}");
    }
    node.leases.retain(|it| it.network != "pods");
    assert_eq!(levels(&judge(&node)), [Level::Ok]);
}

#[test]
fn ranges_of_one_set_are_full_together() {
    let set = json!({"ranges": [[
        {"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.10", "rangeEnd": "10.9.0.10"},
        {"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.20", "rangeEnd": "10.9.0.21"},
    ]]});
    let mut node = node(&[("pods.conflist", &list("pods", &set))]);
    for (address, level) in [
        ("10.9.0.10", Level::Ok),
        ("10.9.0.20", Level::Ok),
        ("10.9.0.21", Level::Problem),
    ] {
        node.leases.push(lease("pods", address, "a"));
        assert_eq!(levels(&judge(&node)), [level], "{address}");
    }
}

#[test]
fn what_is_excluded_twice_is_missing_once() {
    let ipam = json!({
        "subnet": "10.9.0.0/29",
        "rangeEnd": "10.9.0.3",
        "exclude": ["10.9.0.0/31", "10.9.0.1/32"],
    });
    let mut node = node(&[("pods.conflist", &list("pods", &ipam))]);
    node.leases.push(lease("pods", "10.9.0.2", "a"));
    assert_eq!(levels(&judge(&node)), [Level::Ok]);
    node.leases.push(lease("pods", "10.9.0.3", "b"));
    assert_eq!(levels(&judge(&node)), [Level::Problem]);
}

/// flannel's tunnel has the subnet's own address, here 10.244.1.0, which no pod gets.
#[test]
fn a_single_address_that_no_pod_gets_is_no_overlap() {
    let judged = |address| judge(&with_addresses("10.244.1.0/24", address, "10.244.1.1/24"));
    assert_eq!(levels(&judged("10.244.1.0/32")), [Level::Ok]);
    assert_eq!(levels(&judged("10.244.1.7/32")), [Level::Problem]);
}

#[test]
fn live_pods_outside_of_the_ranges_are_reported() {
    let findings = |ranges: &Value, capability: &str| {
        let list = list("pods", ranges).replace(r#""type":"bridge""#, capability);
        let mut node = node(&[("pods.conflist", &list)]);
        node.leases = vec![
            lease("pods", "10.1.0.2", "a"),
            lease("pods", "10.1.0.9", "b"),
        ];
        node.attached = ["a", "b"].map(|it| attached("pods", it)).into();
        judge(&node)
    };
    let plain = r#""type":"bridge""#;
    let passed = r#""type":"bridge","capabilities":{"ipRanges":true}"#;
    let both = json!({"ranges": [[{"subnet": "10.1.0.0/29"}, {"subnet": "10.1.0.8/29"}]]});
    let other = json!({"subnet": "10.2.0.0/16"});
    assert_eq!(levels(&findings(&both, plain)), [Level::Ok]);
    assert_eq!(levels(&findings(&other, passed)), [Level::Ok]);
    let one = findings(&json!({"subnet": "10.1.0.0/29"}), plain);
    assert_eq!(levels(&one), [Level::Warning]);
    assert_eq!(
        one[0].message,
        "network pods: 1 address of live pods in none of its ranges: 10.1.0.9"
    );
}
