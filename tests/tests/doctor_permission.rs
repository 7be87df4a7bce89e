//! cnitool doctor and ps: the plugin `firewall` among the node's rules.

use serde_json::{Value, json};
use tests::traffic::tcp;
use tests::{Host, Place as _};

const CLOSED: &str =
    "add chain inet guard gate { type filter hook forward priority 0 ; policy drop ; }";
const TABLE: &str = "add table inet guard";

/// The plugin `firewall` gives pods permission; doctor tries an address that no pod has yet.
#[test]
fn permission_of_the_plugin_firewall_counts() {
    for rules in [
        "iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP",
        "iptables-legacy -P FORWARD DROP",
        "iptables-nft -A FORWARD -j REJECT",
    ] {
        let host = Host::new();
        let outside = host.outside();
        let pods = [host.sandbox("a"), host.sandbox("b")];
        let tool = host.tool();
        let bridge = host
            .bridge()
            .with("isDefaultGateway", true)
            .with("ipMasq", true);
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let firewall = json!({"type": "firewall"});
        let plugins = [bridge.config().clone(), portmap, firewall];
        tool.configure("pods", &plugins[..2]);
        host.sh(rules);
        tool.on("add", "pods", &pods[0]).ok();
        assert!(tcp(&pods[0], &outside, "192.0.2.2").is_none());
        let covered = ["to other hosts (TCP)", "The plugin `firewall`"];
        tool.doctor().expect("problem", "firewall", &covered);
        tool.configure("pods", &plugins);
        tool.on("add", "pods", &pods[1]).ok();
        assert!(tcp(&pods[1], &outside, "192.0.2.2").is_some());
        let words = ["new packets of pods on cni0 pass"];
        tool.doctor().expect("ok", "firewall", &words);
    }
}

/// No permission helps in a chain that is not iptables'.
#[test]
fn other_chains_drop_in_spite_of_permission() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.tool();
    let bridge = host.bridge().with("isDefaultGateway", true);
    let firewall = json!({"type": "firewall", "ingressPolicy": "isolated"});
    let plugins = [bridge.config().clone(), firewall];
    tool.configure("pods", &plugins);
    tool.on("add", "pods", &a).ok();
    for rule in [TABLE, CLOSED] {
        host.run("nft", &[rule]);
    }
    let words = ["table inet guard, chain gate, by its policy"];
    let findings = tool.doctor();
    findings.expect("problem", "firewall", &words);
    let words = ["permission of the network's plugin `firewall` does not cover it"];
    findings.expect("problem", "firewall", &words);
    let accept = "add rule inet guard gate meta mark & 0x1000 == 0x1000 accept";
    host.run("nft", &[accept]);
    tool.doctor()
        .expect("ok", "firewall", &["new packets of pods on cni0 pass"]);
    host.run("nft", &["delete table inet cni-firewall"]);
    let findings = tool.doctor();
    findings.expect("problem", "firewall", &["in cni-firewall"]);
    assert!(
        findings
            .fixes("firewall")
            .contains(&"cnitool reload".to_owned())
    );
    tool.run(&["reload"]).ok();
    tool.doctor()
        .expect("ok", "firewall", &["new packets of pods on cni0 pass"]);
}

#[test]
fn elements_of_an_attachment_are_a_trace_of_it() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.tool();
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.7.0.2/24"}]});
    let firewall = host
        .bandwidth()
        .with("type", "firewall")
        .with("prevResult", result);
    firewall.add(&a);
    let [row] = <[Value; 1]>::try_from(tool.ps()).unwrap();
    assert_eq!(row["container"], "a");
    assert_eq!(row["addresses"], json!(["10.7.0.2"]));
    assert_eq!(row["knownBy"], json!(["element"]));
    firewall.del(&a);
    assert_eq!(tool.ps(), [] as [Value; 0]);
}

#[test]
fn elements_of_a_bridge_are_no_remnant() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.tool();
    let bridge = host.bridge().with("isDefaultGateway", true);
    let bridge = bridge.with("ipMasq", true);
    for policy in ["same-bridge", "isolated"] {
        let firewall = json!({"type": "firewall", "ingressPolicy": policy});
        tool.configure("pods", &[bridge.config().clone(), firewall]);
        tool.on("add", "pods", &a).ok();
        assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
        assert_eq!(tool.ps().len(), 1);
        tool.on("del", "pods", &a).ok();
        assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
    }
}
