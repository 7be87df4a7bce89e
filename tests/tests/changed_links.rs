//! DEL, GC and RELOAD after an operator has renamed the host's end of a veth pair, or replaced its
//! alias.
//!
//! An address is leased again only after its link is gone. RELOAD protects the link by its present
//! name.

use serde_json::{Value, json};
use tests::{Agent, Host, Network, Place as _, Sandbox, eventually};

/// Changes of an operator to the link `{}`; the link is up again afterwards.
const CHANGES: [&[&str]; 4] = [
    &["link set {} alias inventory-7"],
    &[
        "link set {} down",
        "link set {} name podb",
        "link set podb up",
    ],
    &[
        "link set {} alias inventory-7 down",
        "link set {} name podb",
        "link set podb up",
    ],
    // `ip` deletes the alias if it is empty.
    &["link set {} alias"],
];

/// Returns both networks, each with one address for containers, and with protection in `nf_tables`.
fn networks(host: &Host) -> [Network<'_>; 2] {
    let ranges = json!([[{"subnet": "10.1.0.0/30"}]]);
    let ptp = host.ptp().with("ipam.ranges", ranges.clone());
    let ptp = ptp.with("ipam.routes", json!([])).with("name", "routed");
    let bridge = host.bridge_v4().with("ipam.ranges", ranges);
    let bridge = bridge.with("macspoofchk", true);
    [bridge, ptp].map(|it| it.with("ipMasq", true))
}

/// Attaches the sandbox and returns the name of the host's end.
fn attach(network: &Network<'_>, sandbox: &Sandbox) -> String {
    host_end(&network.add(sandbox))
}

/// Returns the name of the host's end in the result of an ADD.
fn host_end(result: &Value) -> String {
    let interfaces = result["interfaces"].as_array().unwrap().iter();
    let mut names = interfaces.filter_map(|it| it["name"].as_str());
    names.find(|it| it.starts_with("veth")).unwrap().to_owned()
}

fn change(host: &Host, link: &str, changes: &[&str]) {
    for change in changes {
        let mut words: Vec<_> = change.split(' ').map(|it| it.replace("{}", link)).collect();
        if change.ends_with(" alias") {
            words.push(String::new());
        }
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        host.run("ip", &words);
    }
}

fn elements(host: &Host, network: &Network<'_>, sandbox: &Sandbox) -> usize {
    let name = network.config()["name"].as_str().unwrap();
    let owner = format!("cni:{name}/{}/eth0", sandbox.name());
    host.run("nft", &["list", "ruleset"])
        .matches(&owner)
        .count()
}

/// Checks that nothing of the attachment is left, and that its address is free.
#[track_caller]
fn is_gone(host: &Host, network: &Network<'_>, sandbox: &Sandbox) {
    assert_eq!(sandbox.links(), ["lo"]);
    assert!(eventually(|| !host
        .links()
        .iter()
        .any(|it| it == "podb" || it.starts_with("veth"))));
    assert_eq!(elements(host, network, sandbox), 0);
    let next = host.sandbox("next");
    network.add(&next);
    assert!(next.pings("10.1.0.1"));
    network.del(&next);
    next.remove();
}

#[test]
fn del_deletes_a_link_that_an_operator_changed() {
    for changes in CHANGES {
        let host = Host::new();
        for network in networks(&host) {
            for netns in [None, Some(""), Some("/run/netns/never-was")] {
                let b = host.sandbox("b");
                let link = attach(&network, &b);
                change(&host, &link, changes);
                assert!(b.pings("10.1.0.1") && elements(&host, &network, &b) > 0);
                let delete = network.on("DEL", &b);
                let delete = netns.map_or(delete.clone(), |it| delete.netns(it));
                assert_eq!(delete.ok(), Value::Null);
                is_gone(&host, &network, &b);
                assert_eq!(delete.ok(), Value::Null, "a repeated DEL");
                b.remove();
            }
        }
    }
}

/// A process in the sandbox has renamed its end and changed its MAC, too.
#[test]
fn del_needs_no_name_inside_the_sandbox() {
    for changes in CHANGES {
        let host = Host::new();
        for network in networks(&host) {
            let b = host.sandbox("b");
            let link = attach(&network, &b);
            change(&host, &link, changes);
            b.ip("link set eth0 down");
            b.ip("link set eth0 name hidden address 02:00:00:00:00:07");
            b.ip("link set hidden up");
            network.del(&b);
            is_gone(&host, &network, &b);
            b.remove();
        }
    }
}

#[test]
fn gc_deletes_changed_links_of_stale_attachments_only() {
    for changes in &CHANGES[..2] {
        let host = Host::new();
        for network in networks(&host) {
            let b = host.sandbox("b");
            let link = attach(&network, &b);
            change(&host, &link, changes);
            let elements_before = elements(&host, &network, &b);
            network.gc(&[&b]).ok();
            assert!(b.pings("10.1.0.1"));
            assert_eq!(elements(&host, &network, &b), elements_before);
            let other = network.clone().with("name", "other");
            other.gc(&[]).ok();
            assert!(b.pings("10.1.0.1"));
            network.gc(&[]).ok();
            is_gone(&host, &network, &b);
            b.remove();
        }
    }
}

/// Neither the alias nor the MAC shows any more whose link it is.
#[test]
fn del_keeps_lease_and_elements_while_the_link_may_be_of_the_attachment() {
    let host = Host::new();
    for network in networks(&host) {
        let b = host.sandbox("b");
        let link = attach(&network, &b);
        host.ip(&format!(
            "link set {link} alias inventory-7 address 02:00:00:00:00:07"
        ));
        let before = host.snapshot();
        for delete in [network.on("DEL", &b), network.on("DEL", &b).netns("")] {
            delete.error().expect(100, &[&link, "alias", "rename"]);
            host.snapshot().assert_same_as(&before);
        }
        let c = host.sandbox("c");
        network.on("ADD", &c).error();
        c.remove();
        let name = network.config()["name"].as_str().unwrap();
        host.ip(&format!("link set {link} alias cni:{name}/b/eth0"));
        network.del(&b);
        is_gone(&host, &network, &b);
        b.remove();
    }
}

#[test]
fn del_deletes_a_pair_of_the_reference_that_has_an_alias() {
    for network in [Host::bridge_v4, Host::ptp] {
        let host = Host::new();
        let (network, b) = (network(&host), host.sandbox("b"));
        let link = attach(&network.by_reference(), &b);
        change(&host, &link, CHANGES[0]);
        network.del(&b);
        assert_eq!(b.links(), ["lo"]);
        assert!(!host.has_link(&link) && host.leases("pods").is_empty());
    }
}

#[test]
fn del_of_one_interface_leaves_a_renamed_one_of_the_same_container() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge_v4();
    let link = attach(&network, &a);
    network.on("ADD", &a).ifname("net1").ok();
    change(&host, &link, CHANGES[1]);
    network.on("DEL", &a).ifname("net1").netns("").ok();
    network.on("DEL", &a).ifname("net2").ok();
    assert_eq!(a.links(), ["eth0", "lo"]);
    assert!(a.pings("10.1.0.1") && host.leases("pods").len() == 1);
}

/// A container may have given the alias to a link of the host that its runtime moved into the
/// sandbox and back.
#[test]
fn veth_that_connects_no_sandbox_stays_whatever_its_alias_is() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ip("link add card type veth peer name uplink");
    host.ip("link set card alias cni:pods/a/eth0");
    let network = host.bridge_v4();
    network.del(&a);
    network.gc(&[]).ok();
    network.add(&a);
    network.del(&a);
    assert!(host.has_link("card"));
}

/// Gives the container another MAC, and returns whether the gateway answers it then.
fn pings_from_another_mac(pod: &Sandbox) -> bool {
    let own = pod.mac("eth0");
    pod.ip("link set eth0 address 02:00:00:00:00:07");
    let is_answered = pod.pings("10.1.0.1");
    pod.ip(&format!("link set eth0 address {own}"));
    is_answered
}

#[test]
fn reload_restores_elements_for_the_present_name() {
    for changes in CHANGES {
        let host = Host::new();
        for network in networks(&host) {
            let b = host.sandbox("b");
            let result = network.add(&b);
            let attached = network.clone().with("prevResult", result.clone());
            let before = elements(&host, &network, &b);
            change(&host, &host_end(&result), changes);
            host.run("nft", &["flush", "ruleset"]);
            for _ in 0..2 {
                attached.on("RELOAD", &b).ok();
                assert_eq!(elements(&host, &network, &b), before);
            }
            let is_bridge = network.config()["type"] == "bridge";
            let is_renamed = host.has_link("podb");
            let rules = host.run("nft", &["list", "ruleset"]);
            assert_eq!(
                rules.contains("\"podb\""),
                is_bridge && is_renamed,
                "{rules}"
            );
            assert!(b.pings("10.1.0.1"));
            if is_bridge && changes == CHANGES[1] {
                assert!(!pings_from_another_mac(&b));
            }
            network.del(&b);
            is_gone(&host, &network, &b);
            b.remove();
        }
    }
}

#[test]
fn reload_isolates_a_renamed_port() {
    let host = Host::new();
    let network = host.bridge_v4();
    let firewall = host.bandwidth().with("type", "firewall");
    let firewall = firewall.with("ingressPolicy", "isolated");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let [of_a, of_b] = [&a, &b].map(|pod| {
        let firewall = firewall.clone().with("prevResult", network.add(pod));
        firewall.add(pod);
        firewall
    });
    change(&host, &host_end(&of_b.config()["prevResult"]), CHANGES[1]);
    let result = &of_b.config()["prevResult"];
    let refusal = firewall.check(&b, result).error();
    refusal.expect(100, &["isolated-ports"]);
    of_b.on("RELOAD", &b).ok();
    assert!(!a.pings("10.1.0.3"));
    assert_eq!(firewall.check(&b, result).ok(), Value::Null);
    for (pod, firewall) in [(&a, &of_a), (&b, &of_b)] {
        firewall.del(pod);
        network.del(pod);
    }
    assert_eq!(
        host.rules_from("bridge cni-isolation")
            .matches("cni:")
            .count(),
        0
    );
}

/// The tools name the link, and RELOAD of a whole chain restores what a flush removed.
#[test]
fn cnitool_and_the_agent_name_a_renamed_link() {
    let host = Host::new();
    let tool = host.tool();
    let [bridge, _] = networks(&host);
    let limit = host.bandwidth().with("egressRate", 8_000_000);
    let limit = limit.with("egressBurst", 800_000);
    tool.configure("pods", &[bridge.config().clone(), limit.config().clone()]);
    let b = host.sandbox("b");
    let result = tool.add("pods", &b, &[]);
    let link = host_end(&result);
    assert!(!tool.doctor().holds("warning", "pod", &["renamed"]));
    let owner = host.link(&link)["ifalias"].clone();
    let renamed = format!("podb is {link} of {}, renamed", owner.as_str().unwrap());
    change(&host, &link, CHANGES[1]);
    tool.doctor().expect("warning", "pod", &[&renamed]);
    host.run("nft", &["flush", "ruleset"]);
    tool.run(&["reload"]).ok();
    let rules = host.run("nft", &["list", "ruleset"]);
    let places = ["checked-ports", "limits", "podb"].map(|it| rules.matches(it).count());
    assert!(
        places.iter().all(|it| *it > 0) && !rules.contains(&link),
        "{rules}"
    );
    let agent = Agent::start(&host, &json!({"gc": {"runtimeSocket": "none"}}));
    agent.says(&renamed);
    let fixes = tool.doctor().fixes("pod");
    assert_eq!(fixes[1..], ["cnitool reload pods"]);
    for command in fixes {
        tool.obey(&command);
    }
    assert!(host.has_link(&link) && !tool.doctor().holds("warning", "pod", &["renamed"]));
}
