use serde_json::{Value, json};

use super::*;

const IPAM: Option<&str> = Some("host-local");

impl Default for Config {
    /// Returns the configuration of a network without any keys of this plugin.
    fn default() -> Self {
        let raw = RawConfig::default();
        Self::of(raw, IPAM).unwrap()
    }
}

fn config(keys: &Value) -> Result<Config, Error> {
    let raw = cni::json::read(keys, "")?.value;
    Config::of(raw, IPAM)
}

#[test]
fn defaults_are_those_of_the_reference() {
    let config = config(&json!({})).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.bridge.as_str(), "cni0");
    assert_eq!(
        (config.gateway, config.is_promiscuous, config.port_flags),
        (Gateway::None, false, Vec::new())
    );
    assert_eq!(config.mtu, MtuChoice::Detect { overhead: 0 });
    assert_eq!(
        (config.dad, config.other_address),
        (netlink::Dad::Skip, OtherAddress::Refuse)
    );
    assert_eq!(config.frame_filter, FrameFilter::None);
}

#[test]
fn keys_mean_what_they_say() {
    let config = config(&json!({
        "BRIDGE": "br1", "IsGateway": true, "isDefaultGateway": true, "forceAddress": true,
        "mtu": 1400, "hairpinMode": true, "enabledad": true, "bridgeNfCall": false,
        "dns": {"nameservers": ["10.1.0.1"], "search": ["a"]},
    }));
    let config = config.unwrap();
    assert_eq!(config.bridge.as_str(), "br1");
    assert_eq!(
        (config.gateway, config.is_promiscuous, config.port_flags),
        (Gateway::DefaultRoute, false, vec![PortFlag::Hairpin])
    );
    assert_eq!(config.mtu, MtuChoice::Asked(1400));
    assert_eq!(
        (config.dad, config.other_address),
        (netlink::Dad::Perform, OtherAddress::Replace)
    );
    assert_eq!(config.frame_filter, FrameFilter::None);
    assert_eq!(config.dns.unwrap().nameservers, ["10.1.0.1"]);
}

#[test]
fn networks_with_a_gateway_or_masquerading_need_netfilter() {
    let filter = |keys: &Value| config(keys).unwrap().frame_filter;
    for key in ["isGateway", "isDefaultGateway", "ipMasq"] {
        assert_eq!(filter(&json!({key: true})), FrameFilter::Pods);
        let off = json!({key: true, "bridgeNfCall": false});
        assert_eq!(filter(&off), FrameFilter::None);
        let raw = cni::json::read(&json!({key: true}), "").unwrap().value;
        let without_addresses = Config::of(raw, None).unwrap();
        assert_eq!(without_addresses.frame_filter, FrameFilter::None);
    }
    for (value, expected) in [
        (json!(true), FrameFilter::Host),
        (json!("host"), FrameFilter::Host),
        (json!("bridge"), FrameFilter::Bridge),
        (json!(null), FrameFilter::None),
    ] {
        assert_eq!(filter(&json!({"bridgeNfCall": value})), expected);
    }
}

#[test]
fn values_that_make_no_sense_are_refused_with_their_key() {
    for (keys, key) in [
        (json!({"bridge": "a/b"}), "bridge"),
        (json!({"bridge": "sixteen-letters."}), "bridge"),
        (json!({"bridgeNfCall": "Host"}), "bridgeNfCall"),
        (json!({"bridgeNfCall": 1}), "bridgeNfCall"),
        (json!({"mtu": 67}), "mtu"),
        (json!({"mtu": 65536}), "mtu"),
        (json!({"mtu": -1}), "mtu"),
        (json!({"mtu": "1500"}), "mtu"),
        (json!({"mtu": 1500, "mtuOverhead": 50}), "mtuOverhead"),
        (
            json!({"hairpinMode": true, "promiscMode": true}),
            "promiscMode",
        ),
        (json!({"isGateway": "yes"}), "isGateway"),
    ] {
        let error = config(&keys).unwrap_err();
        assert_eq!(error.code(), 7, "{keys}");
        assert!(
            error.to_string().starts_with(&format!("{key}: ")),
            "{error}"
        );
    }
}

#[test]
fn link_without_addresses_may_be_down_and_one_with_them_may_not() {
    let link = |disabled: bool, ipam| {
        let raw = RawConfig {
            disable_container_interface: disabled,
            ..RawConfig::default()
        };
        Config::of(raw, ipam).map(|config| config.container_link)
    };
    assert_eq!(link(false, IPAM).unwrap(), ContainerLink::Addressed);
    assert_eq!(link(false, None).unwrap(), ContainerLink::Up);
    assert_eq!(link(true, None).unwrap(), ContainerLink::Down);
    assert_eq!(link(true, IPAM).unwrap_err().code(), 7);
}

#[test]
fn keys_that_ask_for_nothing_change_nothing() {
    let nothing = json!({
        "ipMasq": false, "ipMasqBackend": "iptables", "vlan": 0, "vlanTrunk": [],
        "preserveDefaultVlan": false, "macspoofchk": false,
    });
    assert_eq!(config(&nothing).unwrap(), Config::default());
}

/// Checks that a missing key gets the value that the JSON Schema gives as its default.
#[test]
fn defaults_are_those_of_the_schema() {
    let schema = include_str!("../../../../conf-examples/conflist.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let keys = schema["$defs"]["bridge"]["properties"].as_object().unwrap();
    let defaults = keys.iter().filter(|(_, it)| !it["default"].is_null());
    let defaults: serde_json::Map<_, _> = defaults
        .map(|(key, it)| (key.clone(), it["default"].clone()))
        .collect();
    assert!(defaults.len() > 15, "{defaults:?}");
    assert_eq!(config(&defaults.into()).unwrap(), Config::default());
}
