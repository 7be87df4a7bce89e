use serde_json::json;

use super::*;

fn sets(value: &Value) -> Vec<String> {
    let sets = runtime_sets(value).unwrap();
    sets.iter().map(ToString::to_string).collect()
}

#[test]
fn runtime_ranges_are_read_in_both_shapes() {
    let nested =
        json!([[{"Subnet": "10.1.0.0/24"}, {"subnet": "10.2.0.0/24"}], [{"subnet": "fd00::/120"}]]);
    assert_eq!(
        sets(&nested),
        [
            "10.1.0.1-10.1.0.254,10.2.0.1-10.2.0.254",
            "fd00::1-fd00::ff"
        ]
    );
    let flat =
        json!([{"subnet": "fd00::/120"}, {"Subnet": "10.1.0.0/24"}, {"subnet": "10.2.0.0/24"}]);
    assert_eq!(
        sets(&flat),
        [
            "10.1.0.1-10.1.0.254,10.2.0.1-10.2.0.254",
            "fd00::1-fd00::ff"
        ]
    );
    assert!(sets(&Value::Null).is_empty());
    assert!(sets(&json!([])).is_empty());
}

#[test]
fn wrong_runtime_ranges_are_refused_with_their_place() {
    for (value, key) in [
        (
            json!([[{"subnet": "10.1.0.9/24"}]]),
            "runtimeConfig.ipRanges[0][0].subnet",
        ),
        (json!([[]]), "runtimeConfig.ipRanges[0]"),
        (json!({"subnet": "10.1.0.0/24"}), "runtimeConfig.ipRanges"),
        (
            json!([{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::1/64"}]),
            "runtimeConfig.ipRanges[1].subnet",
        ),
    ] {
        let error = runtime_sets(&value).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("{key}: ")),
            "{error}"
        );
    }
}

#[test]
fn sets_must_not_overlap() {
    let set = |subnet: &str| {
        let raw = RawRange {
            subnet: subnet.into(),
            ..RawRange::default()
        };
        RangeSet::new(ranges(&[raw], "").unwrap(), "").unwrap()
    };
    assert_eq!(
        expect_apart(&[set("10.1.0.0/16"), set("10.1.2.0/24")])
            .unwrap_err()
            .code(),
        7
    );
    expect_apart(&[set("10.1.0.0/24"), set("10.2.0.0/24"), set("fd00::/64")]).unwrap();
}

/// Parses this `ipam` section together with this `runtimeConfig`, as on a node with two pod CIDRs.
fn config(ipam: &Value, runtime: &Value) -> Result<Config, Error> {
    let ipam = cni::json::read(ipam, "ipam")?.value;
    let pod_cidrs = ["10.244.1.0/24", "fd00:244:1::/64"].map(|it| it.parse().unwrap());
    Config::new(ipam, &runtime["ipRanges"], pod_cidrs.to_vec())?.expect_ranges()
}

#[test]
fn pod_cidrs_make_a_set_for_each_family_before_the_configured_ones() {
    let ipam = json!({"subnet": "usePodCidr", "ranges": [[{"subnet": "10.9.0.0/30"}]]});
    let read = config(&ipam, &json!({})).unwrap();
    let sets: Vec<_> = read.sets.iter().map(ToString::to_string).collect();
    assert_eq!(
        sets,
        [
            "10.244.1.1-10.244.1.254",
            "fd00:244:1::1-fd00:244:1:0:ffff:ffff:ffff:ffff",
            "10.9.0.1-10.9.0.2"
        ]
    );
    for key in ["rangeStart", "rangeEnd", "gateway"] {
        let ipam = json!({"subnet": "usePodCidr", key: "10.244.1.9"});
        assert_eq!(config(&ipam, &json!({})).unwrap_err().code(), 7);
    }
}

#[test]
fn sets_come_from_the_runtime_then_the_flat_keys_then_ranges() {
    let ipam = json!({
        "Ranges": [[{"subnet": "10.3.0.0/24"}]],
        "subnet": "10.2.0.0/24", "rangeStart": "10.2.0.5", "rangeEnd": "10.2.0.6", "gateway": "192.0.2.1",
    });
    let runtime = json!({"ipRanges": [[{"subnet": "10.1.0.0/24"}]]});
    let sets = config(&ipam, &runtime).unwrap().sets;
    let names: Vec<_> = sets.iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "10.1.0.1-10.1.0.254",
            "10.2.0.5-10.2.0.6",
            "10.3.0.1-10.3.0.254"
        ]
    );
}

#[test]
fn route_keeps_every_attribute() {
    let route = json!({"dst": "0.0.0.0/0", "gw": "10.1.0.9", "mtu": 1400, "advmss": 1360, "priority": 7, "table": 100, "scope": 253});
    let ipam = json!({"subnet": "10.1.0.0/24", "routes": [route, {"dst": "fd00::/8"}]});
    let routes = config(&ipam, &json!({})).unwrap().routes;
    let expected = Route {
        gw: Some("10.1.0.9".parse().unwrap()),
        mtu: Some(1400),
        advmss: Some(1360),
        priority: Some(7),
        table: Some(100),
        scope: Some(253),
        ..Route::to("0.0.0.0/0".parse().unwrap())
    };
    assert_eq!(routes, [expected, Route::to("fd00::/8".parse().unwrap())]);
}

#[test]
fn invalid_ranges_are_refused_with_key_and_value() {
    expect_refused([
        (json!({}), "ipam.ranges: no range to lease from"),
        (json!({"ranges": [[]]}), "ipam.ranges[0]: a range set needs"),
        (
            json!({"ranges": [{"subnet": "10.1.0.0/24"}]}),
            "ipam.ranges[0]: ",
        ),
        (json!({"ranges": "10.1.0.0/24"}), "ipam.ranges: "),
        (
            json!({"ranges": [[{"subnet": 10}]]}),
            "ipam.ranges[0][0].subnet: ",
        ),
        (
            json!({"rangeStart": "10.1.0.5"}),
            "ipam.ranges: no range to lease from",
        ),
        (
            json!({"subnet": "10.1.0.5/24"}),
            "ipam.subnet: 10.1.0.5/24 has host bits",
        ),
    ]);
}

#[test]
fn other_invalid_keys_are_refused_with_key_and_value() {
    let with =
        |key: &str, value: Value| json!({"ranges": [[{"subnet": "10.1.0.0/24"}]], key: value});
    expect_refused([
        (
            with("subnet", json!("10.1.0.0/25")),
            "ipam.ranges: 10.1.0.1-10.1.0.126 of 10.1.0.0/25 overlaps 10.1.0.1-10.1.0.254 of 10.1.0.0/24, another set",
        ),
        (
            with("routes", json!([{"dst": "10.9.0.0/33"}])),
            "ipam.routes[0].dst: \"10.9.0.0/33\"",
        ),
        (
            with("routes", json!([{"gw": "10.1.0.1"}])),
            "ipam.routes[0]: missing field `dst`",
        ),
        (
            with("routes", json!([{"dst": "::/0", "gw": "x"}])),
            "ipam.routes[0].gw: \"x\"",
        ),
        (
            with("routes", json!([{"dst": "::/0", "scope": 256}])),
            "ipam.routes[0].scope: ",
        ),
        (
            with("dataDir", json!("leases")),
            "ipam.dataDir: \"leases\" is not an absolute path",
        ),
        (with("resolvConf", json!(true)), "ipam.resolvConf: "),
    ]);
}

/// Checks that each `ipam` section is refused with code 7 and a message that starts with the text
/// next to it.
fn expect_refused<const N: usize>(cases: [(Value, &str); N]) {
    for (ipam, expected) in cases {
        let error = config(&ipam, &json!({})).unwrap_err();
        assert_eq!(error.code(), 7, "{error}");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

#[test]
fn missing_resolv_conf_is_named() {
    let ipam = json!({"subnet": "10.1.0.0/24", "resolvConf": "/nowhere/resolv.conf"});
    let error = config(&ipam, &json!({})).unwrap().dns().unwrap_err();
    assert!(
        error.to_string().contains("/nowhere/resolv.conf"),
        "{error}"
    );
}

/// Checks that a key with the schema's default has the same effect as an absent key.
#[test]
fn defaults_are_those_of_the_schema() {
    let schema = include_str!("../../../../conf-examples/conflist.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let keys = schema["$defs"]["host-local"]["properties"]
        .as_object()
        .unwrap();
    let defaults = keys.iter().filter(|(_, it)| !it["default"].is_null());
    let mut written = json!({"subnet": "10.1.0.0/24"});
    let unwritten = config(&written, &json!({})).unwrap();
    // Leaves out `podCidrFile`, which is valid only if `subnet` is `usePodCidr`.
    for (key, it) in defaults.filter(|(key, _)| *key != "podCidrFile") {
        written[key] = it["default"].clone();
    }
    assert!(written.as_object().unwrap().len() > 5, "{written}");
    assert_eq!(config(&written, &json!({})).unwrap(), unwritten);
}
