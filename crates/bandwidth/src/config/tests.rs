use serde_json::{Value, json};

use super::*;

fn read(own: &Value, runtime: &Value) -> Result<Config, Error> {
    let own = cni::json::read(own, "")?.value;
    Config::of(own, cni::json::read(runtime, "runtimeConfig")?.value)
}

fn rate(asked: Option<&Asked>) -> Option<String> {
    asked.map(|asked| format!("{} bit/s", asked.rate.bytes() * 8))
}

fn rates(own: &Value, runtime: &Value) -> [Option<String>; 2] {
    let config = read(own, runtime).unwrap();
    [Direction::Ingress, Direction::Egress].map(|it| rate(config.limits.get(&it)))
}

fn burst(own: &Value, runtime: &Value) -> (u64, Option<String>) {
    let mut limits = read(own, runtime).unwrap().limits;
    let asked = limits.remove(&Direction::Ingress).unwrap();
    (asked.burst, asked.burst_key)
}

#[test]
fn own_keys_come_before_the_runtimes_and_those_before_annotations() {
    let annotations = json!({"kubernetes.io/egress-bandwidth": "10M"});
    let mut runtime = json!({
        "Bandwidth": {"IngressRate": 1000, "IngressBurst": 4_294_967_295_u64},
        "io.kubernetes.cri.pod-annotations": annotations,
    });
    let none = || None::<String>;
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        rates(&json!({"egressRate": 8}), &runtime),
        [none(), some("8 bit/s")]
    );
    assert_eq!(rates(&json!({"egressRate": 0}), &runtime), [none(), none()]);
    let shaped = json!({"defaultBurst": 64_000, "shapedSubnets": ["10.0.0.0/8"]});
    for own in [json!({}), shaped] {
        assert_eq!(rates(&own, &runtime), [some("1000 bit/s"), none()]);
    }
    runtime["Bandwidth"]["IngressRate"] = json!(0);
    let annotated = [none(), some("10000000 bit/s")];
    assert_eq!(rates(&json!({}), &runtime), annotated);
}

#[test]
fn nothing_is_limited_by_zeros_and_bursts_alone() {
    let zeros = json!({"bandwidth": {
        "ingressRate": 0, "ingressBurst": 34_359_738_359_u64, "egressRate": 0, "egressBurst": 0,
    }});
    assert!(read(&json!({}), &zeros).unwrap().limits.is_empty());
    assert!(
        read(&json!({"ingressBurst": 64_000}), &json!({}))
            .unwrap()
            .limits
            .is_empty()
    );
    assert!(
        read(&json!({}), &json!({"bandwidth": null}))
            .unwrap()
            .limits
            .is_empty()
    );
}

#[test]
fn burst_is_configured_or_derived() {
    let asked = |bits: u64| json!({"bandwidth": {"ingressRate": 1000, "ingressBurst": bits}});
    let chosen = |bits, key: &str| (bits, Some(key.to_owned()));
    let default = json!({"defaultBurst": 64_000});
    for bits in [0, 4_294_967_295, 34_359_738_359, 2_147_483_647] {
        assert_eq!(burst(&json!({}), &asked(bits)), (bits, None));
        assert_eq!(
            burst(&default, &asked(bits)),
            chosen(64_000, "defaultBurst")
        );
    }
    let key = "runtimeConfig.bandwidth.ingressBurst";
    assert_eq!(burst(&default, &asked(20_000)), chosen(20_000, key));
}

#[test]
fn subnets_are_read_without_host_bits_and_once() {
    let asked = |key: &str| {
        let own = json!({"ingressRate": 1000, key: ["10.1.2.3/8", "10.0.0.0/8", "fd00::1/64"]});
        read(&own, &json!({})).unwrap().traffic
    };
    let subnets = || vec!["10.0.0.0/8".parse().unwrap(), "fd00::/64".parse().unwrap()];
    assert_eq!(asked("shapedSubnets"), Traffic::Only(subnets()));
    assert_eq!(asked("unshapedSubnets"), Traffic::AllBut(subnets()));
    let of_runtime =
        json!({"bandwidth": {"ingressRate": 1000, "unshapedSubnets": ["10.0.0.0/8", "fd00::/64"]}});
    let config = read(&json!({}), &of_runtime).unwrap();
    assert_eq!(config.traffic, Traffic::AllBut(subnets()));
}

fn expect_refused(own: &Value, runtime: &Value, start: &str) {
    let error = read(own, runtime).unwrap_err();
    let told = error.to_string();
    assert!(error.code() == 7 && told.starts_with(start), "{told}");
}

#[test]
fn rates_that_make_no_sense_are_refused_with_their_keys() {
    for (own, start) in [
        (
            json!({"ingressRate": 7}),
            "ingressRate: 7 is not within 8 to",
        ),
        (
            json!({"egressRate": 1_000_000_000_000_001_u64}),
            "egressRate: ",
        ),
        (json!({"ingressRate": -1}), "ingressRate: "),
        (json!({"ingressRate": "1M"}), "ingressRate: "),
    ] {
        expect_refused(&own, &json!({}), start);
    }
    for text in ["10", "2P", "fast", ""] {
        let runtime =
            json!({"io.kubernetes.cri.pod-annotations": {"kubernetes.io/ingress-bandwidth": text}});
        let start = format!("kubernetes.io/ingress-bandwidth: {text:?}");
        expect_refused(&json!({}), &runtime, &start);
    }
}

#[test]
fn subnets_that_make_no_sense_are_refused_with_their_keys() {
    let one = ["10.0.0.0/8"];
    for (own, start) in [
        (
            json!({"shapedSubnets": one, "unshapedSubnets": one}),
            "shapedSubnets: ",
        ),
        (
            json!({"shapedSubnets": ["10.0.0.0/8", "10.0.0.0/33"]}),
            "shapedSubnets[1]: ",
        ),
        (
            json!({"unshapedSubnets": ["10.0.0.1"]}),
            "unshapedSubnets[0]: ",
        ),
    ] {
        expect_refused(&own, &json!({}), start);
    }
}

/// Checks that a missing key gets the value that the JSON Schema gives as its default.
#[test]
fn defaults_are_those_of_the_schema() {
    let schema = include_str!("../../../../conf-examples/conflist.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let keys = schema["$defs"]["bandwidth"]["properties"]
        .as_object()
        .unwrap();
    let defaults = keys.iter().filter(|(_, it)| !it["default"].is_null());
    let defaults: serde_json::Map<_, _> = defaults
        .map(|(key, it)| (key.clone(), it["default"].clone()))
        .collect();
    assert!(defaults.len() > 4, "{defaults:?}");
    assert_eq!(
        read(&defaults.into(), &json!({})).unwrap(),
        read(&json!({}), &json!({})).unwrap()
    );
}
