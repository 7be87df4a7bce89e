use cni::{Document, SearchPath, SpecVersion};
use serde_json::{Value, json};

use super::*;

fn parse(version: &str, parts: &Value, args: &str) -> Result<Config, Error> {
    let mut document = parts.clone();
    document["cniVersion"] = version.into();
    document["name"] = "pods".into();
    let document = Document::decode(document.to_string().into()).unwrap();
    let network = Network::parse(document, SearchPath::default(), SpecVersion::ALL).unwrap();
    Config::parse(&network, &CniArgs::parse(args).unwrap())
}

fn listed(config: &Config) -> Vec<String> {
    let ips = config.ips.iter().map(|ip| match ip.gateway {
        Some(gateway) => format!("{} by {gateway}", ip.address),
        None => ip.address.to_string(),
    });
    ips.collect()
}

const ARGS: &str = "IP=10.3.0.2/24, fd00:3::2/64;GATEWAY=10.1.0.9,fd00:3::1";

#[test]
fn arguments_append_and_lists_of_the_runtime_replace() {
    let configured = json!({"addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]});
    let mut parts = json!({"ipam": configured});
    let appended = parse("1.0.0", &parts, ARGS).unwrap();
    assert_eq!(
        listed(&appended),
        [
            "10.1.0.2/24 by 10.1.0.1",
            "10.3.0.2/24",
            "fd00:3::2/64 by fd00:3::1"
        ]
    );
    parts["args"] = json!({"cni": {"ips": ["10.4.0.2/24"]}});
    assert_eq!(
        listed(&parse("1.0.0", &parts, ARGS).unwrap()),
        ["10.4.0.2/24"]
    );
    parts["runtimeConfig"] = json!({"ips": ["10.5.0.2/24", "fd00:5::2/64"]});
    let replaced = parse("0.2.0", &parts, ARGS).unwrap();
    assert_eq!(listed(&replaced), ["10.5.0.2/24", "fd00:5::2/64"]);
    parts["runtimeConfig"] = json!({"ips": []});
    assert_eq!(
        listed(&parse("1.0.0", &parts, ARGS).unwrap()),
        ["10.4.0.2/24"]
    );
}

#[test]
fn old_results_hold_one_address_of_each_family() {
    let one = json!({"ipam": {"addresses": [{"address": "10.1.0.2/24"}]}});
    assert!(parse("0.2.0", &one, "").is_ok());
    assert!(parse("0.3.0", &one, "IP=10.1.0.3/24").is_ok());
    for version in ["0.1.0", "0.2.0"] {
        let error = parse(version, &one, "IP=10.1.0.3/24").unwrap_err();
        assert_eq!(error.code(), 7);
        assert!(parse(version, &one, "IP=fd00::3/64").is_ok());
    }
}
