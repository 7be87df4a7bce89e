//! The quotes in `crates/when-a-pod-has-no-network.md` are the plugins' messages.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tests::{Chain, Host, Network, Place as _};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(path.join("../crates/when-a-pod-has-no-network.md")).unwrap()
}

/// Returns the words in backticks in the first column of the first table.
fn quoted(page: &str) -> Vec<String> {
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let first = rows.map(|row| row.split('|').nth(1).unwrap().trim());
    let quoted = first.map(|cell| cell.split('`').nth(1).unwrap_or_else(|| panic!("{cell}")));
    quoted.map(str::to_owned).collect()
}

/// Returns the output of an ADD for a sandbox `b` on standard output and standard error.
fn said(host: &Host, network: &Network<'_>) -> String {
    let outcome = network.on("ADD", &host.sandbox("b")).run();
    let said = match serde_json::from_str::<Value>(&outcome.stdout) {
        Ok(object) => format!("{}: {}", object["msg"], object["details"]).replace("\\\"", "\""),
        Err(_) => outcome.stdout,
    };
    said + &outcome.stderr
}

/// Returns the messages of ADDs that fail or do not do what the operator wanted.
fn all_that_is_said() -> String {
    let host = Host::new();
    let a = host.sandbox("a");
    let full = host
        .bridge_v4()
        .with("ipam.ranges", json!([[{"subnet": "10.81.0.0/30"}]]));
    full.add(&a);
    let mut all = said(&host, &full);
    all += &full.on("ADD", &a).error().msg;
    all += &full.on("ADD", &a).netns("/run/netns/gone").error().msg;
    for (key, value) in [
        ("ipam.type", json!("hostlocal")),
        ("mtu", json!(70000)),
        ("cniVersion", json!("9.9.9")),
        ("isGatway", json!(true)),
    ] {
        let host = Host::new();
        all += &said(&host, &host.bridge().with(key, value));
    }
    let host = Host::new();
    host.ip("link add cni0 type veth peer name other");
    all += &said(&host, &host.bridge());
    let devices = host.bandwidth().with("podResources", true);
    let add = devices.on("ADD", &host.sandbox("c"));
    all += &add.args("K8S_POD_UID=uid").error().msg;
    let host = Host::new();
    let chain = Chain::new(&host, &["bridge", "portmap"]);
    chain.add(&host.sandbox("a")).unwrap();
    all + &chain.add(&host.sandbox("b")).unwrap_err()
}

#[test]
fn texts_of_the_page_are_those_of_plugins() {
    let (page, said) = (page(), all_that_is_said());
    let quoted = quoted(&page);
    assert!(quoted.len() > 8, "{quoted:?}");
    for text in quoted {
        assert!(said.contains(&text), "no plugin says {text:?}: {said}");
    }
}

#[test]
fn check_reports_what_the_page_quotes() {
    let (host, page) = (Host::new(), page());
    let a = host.sandbox("a");
    let network = host.bridge_v4().with("ipMasq", true);
    let result = network.add(&a);
    let expect = |text: &str| {
        assert!(page.contains(text), "{text:?} is not in the page");
        let refusal = network.check(&a, &result).error();
        assert!(refusal.mentions(text), "{refusal:?}");
    };
    tests::run("nft", &["flush", "ruleset"]);
    expect("nf_tables: element of cni:pods/a/eth0 in set pods4 is missing or has another value");
    host.ip("link delete cni0");
    expect("bridge cni0 is gone");
}

#[test]
fn status_reports_what_the_page_quotes() {
    let host = Host::new();
    host.ip("link add cni0 type veth peer name other");
    let refusal = host
        .bridge()
        .with("cniVersion", "1.1.0")
        .call("STATUS")
        .error();
    assert!(
        page().replace('\n', " ").contains(&refusal.msg),
        "{refusal:?}"
    );
}
