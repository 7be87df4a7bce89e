//! host-local and the reference share their files, so a node may switch between them without
//! draining.

use std::fs;

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Sandbox};

/// Returns one network with both implementations, and a sandbox.
fn both(host: &Host) -> ([Network<'_>; 2], Sandbox) {
    let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
    let ours = host.host_local().with("ipam.ranges", ranges);
    let reference = ours.by_reference();
    ([ours, reference], host.sandbox("a"))
}

fn addresses(result: &Value) -> [&str; 2] {
    [0, 1].map(|index| result["ips"][index]["address"].as_str().unwrap())
}

#[test]
fn both_write_the_same_files() {
    let host = Host::new();
    let ([ours, reference], a) = both(&host);
    let files = |network: &Network<'_>| {
        let result = network.add(&a);
        let dir = host.lease_dir().join("pods");
        let last = ["last_reserved_ip.0", "last_reserved_ip.1"]
            .map(|name| fs::read_to_string(dir.join(name)).unwrap());
        let found = (
            result["ips"].clone(),
            host.leases("pods"),
            last,
            dir.join("lock").exists(),
        );
        fs::remove_dir_all(dir).unwrap();
        found
    };
    assert_eq!(files(&ours), files(&reference));
}

#[test]
fn what_one_leased_the_other_checks_and_releases() {
    let host = Host::new();
    let ([ours, reference], a) = both(&host);
    for (one, other) in [(&ours, &reference), (&reference, &ours)] {
        let result = one.add(&a);
        assert_eq!(host.leases("pods").len(), 2);
        other.check(&a, &result).ok();
        other.del(&a);
        assert!(host.leases("pods").is_empty());
        other.check(&a, &result).error();
    }
}

#[test]
fn what_one_leased_the_other_does_not_lease_again() {
    let host = Host::new();
    let ([ours, reference], _) = both(&host);
    let range =
        json!([[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.13"}]]);
    let [ours, reference] =
        [ours, reference].map(|network| network.with("ipam.ranges", range.clone()));
    let mut leased = Vec::new();
    for (name, network) in [
        ("p", &ours),
        ("q", &reference),
        ("r", &ours),
        ("s", &reference),
    ] {
        let result = network.add(&host.sandbox(name));
        leased.push(result["ips"][0]["address"].as_str().unwrap().to_owned());
    }
    assert_eq!(
        leased,
        [
            "10.1.0.10/24",
            "10.1.0.11/24",
            "10.1.0.12/24",
            "10.1.0.13/24"
        ]
    );
    let late = host.sandbox("late");
    for network in [&ours, &reference] {
        network.on("ADD", &late).error();
    }
}

#[test]
fn both_go_round_after_the_others_last_address() {
    let host = Host::new();
    let ([ours, reference], a) = both(&host);
    for (number, network) in [(2, &ours), (3, &reference), (4, &ours), (5, &reference)] {
        let result = network.add(&a);
        let expected = [
            format!("10.1.0.{number}/24"),
            format!("fd00:1::{number}/64"),
        ];
        assert_eq!(addresses(&result), expected);
        network.del(&a);
    }
}

#[test]
fn both_refuse_a_second_lease_of_the_others_attachment() {
    let host = Host::new();
    let ([ours, reference], a) = both(&host);
    for (one, other) in [(&ours, &reference), (&reference, &ours)] {
        one.add(&a);
        let before = host.snapshot();
        other.on("ADD", &a).error();
        host.snapshot().assert_same_as(&before);
        one.del(&a);
    }
}

#[test]
fn a_lease_of_old_times_holds_only_the_container_id() {
    let host = Host::new();
    let ([ours, _], a) = both(&host);
    let dir = host.lease_dir().join("pods");
    fs::create_dir_all(&dir).unwrap();
    for content in ["a", "a\n", " a "] {
        fs::write(dir.join("10.1.0.2"), content).unwrap();
        let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]});
        ours.check(&a, &result).ok();
        ours.del(&a);
        assert!(host.leases("pods").is_empty(), "{content:?}");
    }
}

#[test]
fn files_that_are_no_leases_are_left_alone() {
    let host = Host::new();
    let ([ours, reference], a) = both(&host);
    let dir = host.lease_dir().join("pods");
    fs::create_dir_all(&dir).unwrap();
    for (name, content) in [
        ("README", "a\r\neth0"),
        ("10.1.0", "a\r\neth0"),
        ("last_reserved_ip.7", "x"),
    ] {
        fs::write(dir.join(name), content).unwrap();
    }
    ours.add(&a);
    ours.del(&a);
    for (name, content) in [
        ("README", "a\r\neth0"),
        ("10.1.0", "a\r\neth0"),
        ("last_reserved_ip.7", "x"),
    ] {
        assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), content);
    }
    // The reference accepts all files of ours.
    fs::remove_file(dir.join("README")).unwrap();
    fs::remove_file(dir.join("10.1.0")).unwrap();
    ours.add(&a);
    reference.add(&host.sandbox("b"));
    reference.del(&a);
    assert_eq!(host.leases("pods").len(), 2);
}

#[test]
fn an_empty_lease_of_the_reference_has_no_holder() {
    let host = Host::new();
    let ([ours, _], a) = both(&host);
    let dir = host.lease_dir().join("pods");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("10.1.0.2"), "").unwrap();
    ours.del(&a);
    assert!(ours.add(&a)["ips"].is_array());
    ours.del(&a);
}

#[test]
fn a_bridge_of_one_is_checked_by_the_other() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (ours, reference) = (host.bridge(), host.bridge().by_reference());
    let result = ours.add(&a);
    reference.check(&a, &result).ok();
    ours.del(&a);
    let result = reference.add(&a);
    ours.check(&a, &result).ok();
    reference.clone().with("prevResult", result).del(&a);
    assert_eq!(a.links(), ["lo"]);
}
