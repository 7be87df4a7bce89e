//! Ports of our bridges that no attachment explains: doctor and the agent report them.

use nix::sys::signal::Signal;
use serde_json::json;
use tests::{Agent, Host, Place as _, eventually};

const WORDS: &str = "is a port of cni1, but belongs to no attachment";

#[test]
fn port_that_no_attachment_explains_is_reported() {
    let host = Host::new();
    let tool = host.pods();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let result = tool.add("pods", &a, &[]);
    assert!(!tool.doctor().holds("warning", "bridge", &[WORDS]));
    // A running ADD has no cached result yet.
    let running = host.bridge().with("bridge", "cni1");
    running.add(&b);
    assert!(!tool.doctor().holds("warning", "bridge", &[WORDS]));
    // Root in a pod can choose name and alias.
    host.ip("link add veth0123456789a type veth peer name inside");
    host.ip("link set veth0123456789a master cni1 alias cni:pods/x/eth0 up");
    host.ip("link add grey type bridge");
    let findings = tool.doctor();
    findings.expect("warning", "bridge", &[&format!("veth0123456789a {WORDS}")]);
    assert!(!findings.holds("warning", "bridge", &["grey"]));
    let own = result["interfaces"][1]["name"].as_str().unwrap();
    assert!(!findings.holds("warning", "bridge", &[&format!("{own} is")]));
    for command in findings.fixes("bridge") {
        tool.obey(&command);
    }
    assert!(a.pings("10.1.0.1"));
    let agent = Agent::start(&host, &json!({"gc": {"runtimeSocket": "none"}}));
    agent.is_up();
    // Two rounds in a row have to find it.
    let line = format!("gc: veth0123456789a {WORDS}");
    let is_reported = eventually(|| {
        agent.signal(Signal::SIGHUP);
        agent.log().contains(&line)
    });
    assert!(is_reported, "{}", agent.log());
    assert!(!agent.log().contains(own), "{}", agent.log());
}
