use serde_json::{Value, json};

use super::*;
use crate::SpecVersion;

fn dual_stack() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "cni0", "mac": "0a:58:0a:01:00:01", "mtu": 1500},
            {"name": "eth0", "mac": "0a:58:0a:01:00:02", "sandbox": "/run/netns/a",
             "mtu": 1500, "pciID": "0000:00:1f.6", "socketPath": "/run/s", "vendor": {"a": 1}},
        ],
        "ips": [
            {"interface": 1, "address": "10.1.0.2/24", "gateway": "10.1.0.1"},
            {"interface": 1, "address": "fd00::2/64", "gateway": "fd00::1"},
            {"interface": 1, "address": "10.2.0.2/24"},
        ],
        "routes": [
            {"dst": "0.0.0.0/0", "mtu": 1400, "advmss": 1360, "priority": 7, "table": 100, "scope": 0},
            {"dst": "::/0", "gw": "fd00::1"},
        ],
        "dns": {"nameservers": ["10.1.0.1"], "domain": "test", "search": ["a"], "options": ["ndots:5"]},
        "vendor.example/id": "kept",
    })
}

fn parse(value: Value) -> AddResult {
    read(value, SpecVersion::CURRENT, "prevResult").unwrap()
}

#[test]
fn newest_form_is_printed_as_it_was_read() {
    assert_eq!(
        parse(dual_stack()).to_json(SpecVersion::V1_1_0),
        dual_stack()
    );
}

#[test]
fn result_in_every_version() {
    let result = parse(dual_stack());
    for version in SpecVersion::ALL {
        insta::assert_json_snapshot!(format!("result_{version}"), result.to_json(*version));
    }
}

#[test]
fn what_an_older_form_holds_is_kept_on_the_way_there_and_back() {
    for version in SpecVersion::ALL {
        let printed = parse(dual_stack()).to_json(*version);
        assert_eq!(
            parse(printed.clone()).to_json(*version),
            printed,
            "{version}"
        );
    }
}

#[test]
fn keys_match_in_any_case_and_null_lists_are_empty() {
    let result = parse(json!({
        "CNIVersion": "1.0.0",
        "Interfaces": [{"Name": "eth0", "Mac": "", "Sandbox": "/run/netns/a"}],
        "IPs": [{"Address": "10.1.0.2/24", "Version": "4", "Interface": 0}],
        "routes": null,
    }));
    assert_eq!(result.interfaces[0].mac, None);
    assert_eq!(result.ips[0].interface, Some(0));
    assert!(result.routes.is_empty());
}

#[test]
fn result_without_version_takes_the_one_of_the_configuration() {
    let value = json!({"ip4": {"ip": "10.1.0.2/24", "routes": [{"dst": "0.0.0.0/0"}]}});
    let result = read(value, SpecVersion::V0_2_0, "prevResult").unwrap();
    assert_eq!(result.ips[0].address, "10.1.0.2/24".parse().unwrap());
    assert_eq!(result.routes.len(), 1);
}

#[test]
fn an_index_of_no_interface_counts_as_none() {
    for index in [-1, 0, 1] {
        let result = parse(json!({"ips": [{"address": "10.1.0.2/24", "interface": index}]}));
        assert_eq!(result.ips[0].interface, None, "{index}");
    }
}

#[test]
fn empty_version_is_that_of_the_request() {
    let value = json!({"cniVersion": "", "ips": [{"address": "10.1.0.2/24"}]});
    let result = read(value, SpecVersion::V1_0_0, "result").unwrap();
    assert_eq!(result.ips, [IpConfig::of("10.1.0.2/24".parse().unwrap())]);
}

#[test]
fn nonsense_is_refused_with_its_place() {
    for (value, place) in [
        (json!([]), "expected an object"),
        (json!({"cniVersion": "9.9.9"}), "cniVersion"),
        (
            json!({"ips": [{"address": "10.1.0.2/33"}]}),
            "ips[0].address",
        ),
        (json!({"ips": [{}]}), "ips[0]: missing field `address`"),
        (json!({"interfaces": ["eth0"]}), "interfaces[0]"),
        (
            json!({"routes": [{"dst": "0.0.0.0/0", "gw": "x"}]}),
            "routes[0].gw",
        ),
    ] {
        let error = read(value, SpecVersion::CURRENT, "prevResult").unwrap_err();
        assert_eq!(error.code(), 6);
        assert!(
            error
                .to_string()
                .starts_with(&format!("decode prevResult: {place}")),
            "{error}"
        );
    }
}

#[test]
fn known_keys_of_another_version_or_case_are_not_passed_on() {
    let old = json!({"cniVersion": "0.2.0", "ips": [{"interface": 7}], "IP4": {}, "ip4": {"ip": "10.1.0.2/24", "Address": 1}});
    let new = json!({"cniVersion": "1.0.0", "ip4": 7, "IPS": 7, "ips": [{"address": "10.1.0.2/24", "routes": 7}]});
    for (value, version) in [(old, SpecVersion::V1_0_0), (new, SpecVersion::V0_2_0)] {
        let result = read(value, version, "result").unwrap();
        let address = IpConfig::of("10.1.0.2/24".parse().unwrap());
        assert_eq!(
            result,
            AddResult {
                ips: vec![address],
                ..AddResult::default()
            }
        );
    }
}
