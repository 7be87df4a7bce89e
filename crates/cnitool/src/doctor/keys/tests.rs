//! Tests that unknown keys are found.

use super::super::tests::node;
use super::*;

fn judged(plugin: &str) -> Vec<String> {
    let list = format!(r#"{{"name": "pods", "cniVersion": "1.0.0", "plugins": [{plugin}]}}"#);
    let findings = judge(&node(&[("pods.conflist", &list)])).into_iter();
    let words = findings.map(|it| format!("{} {}", it.message, it.impact));
    words.collect()
}

#[test]
fn misspelt_keys_are_reported_with_the_right_one() {
    for (plugin, message) in [
        (
            r#"{"type": "bridge", "isGatway": true}"#,
            "bridge has no key isGatway It is ignored. Perhaps isGateway was meant.",
        ),
        (
            r#"{"type": "bridge", "vlanTrunk": [{"minId": 2, "maxVID": 3}]}"#,
            "bridge has no key vlanTrunk[].maxVID It is ignored. Perhaps vlanTrunk[].maxID was meant.",
        ),
        (
            r#"{"type": "x", "ipam": {"type": "host-local", "ranges": [[{"subnets": "a"}]]}}"#,
            "host-local has no key ipam.ranges[][].subnets It is ignored. Perhaps \
             ipam.ranges[][].subnet was meant.",
        ),
        (
            r#"{"type": "portmap", "somethingElse": 1}"#,
            "portmap has no key somethingElse It is ignored.",
        ),
    ] {
        assert_eq!(judged(plugin), [format!("pods.conflist: {message}")]);
    }
}

#[test]
fn keys_in_any_case_foreign_plugins_and_content_are_left_alone() {
    for plugin in [
        r#"{"type": "bridge", "ISGATEWAY": true, "capabilities": {"x": true}, "args": {"y": 1}}"#,
        r#"{"type": "calico", "mtu": 1500, "isGatway": 1}"#,
        r#"{"type": "bridge", "cni.dev/x": 1, "ipam": {"type": "whereabouts", "range": 1}}"#,
        r#"{"type": "bandwidth", "ipam": {}, "dns": {"nameserver": 1}}"#,
    ] {
        assert_eq!(judged(plugin), [""; 0], "{plugin}");
    }
}

#[test]
fn misspelt_keys_around_the_plugins_are_reported() {
    let of = |key: &str| {
        let list = format!(r#"{{"name": "a", "{key}": "1.0.0", "plugins": [{{"type": "x"}}]}}"#);
        judge(&node(&[("a.conflist", &list)])).len()
    };
    assert_eq!(
        [of("cniversoin"), of("CNIVersion"), of("nerdctlID")],
        [1, 0, 0]
    );
}
