//! bandwidth beside the reference, which limits what a container sends at an ifb. It names the ifb
//! after the container and does not mark its interface.

use serde_json::{Value, json};
use tests::{Host, Invocation, Network, Place as _, Sandbox};

/// An interface of a sandbox on the bridge, limited in both directions.
struct Attachment<'h> {
    sandbox: &'h Sandbox,
    interface: &'static str,
    /// The pair's host end.
    host_link: String,
    network: Network<'h>,
}

impl<'h> Attachment<'h> {
    /// Creates an attachment on its own bridge, so that each interface answers separately.
    fn new(host: &'h Host, sandbox: &'h Sandbox, interface: &'static str) -> Self {
        let number = u8::from(interface != "eth0");
        let subnet = json!([[{"subnet": format!("10.{number}.0.0/24")}]]);
        let bridge = host.bridge_v4().with("bridge", format!("cni{number}"));
        let bridge = bridge.with("ipam.ranges", subnet).on("ADD", sandbox);
        let result = bridge.ifname(interface).ok();
        let limits = json!({
            "ingressRate": 10_000_000, "ingressBurst": 1_000_000,
            "egressRate": 20_000_000, "egressBurst": 1_000_000,
        });
        let network = host.bandwidth().with("runtimeConfig.bandwidth", limits);
        Self {
            sandbox,
            interface,
            host_link: result["interfaces"][1]["name"].as_str().unwrap().to_owned(),
            network: network.with("prevResult", result),
        }
    }

    fn ours(&self, verb: &str) -> Invocation {
        let call = self.network.on(verb, self.sandbox);
        call.ifname(self.interface)
    }

    fn by_reference(&self, verb: &str) -> Invocation {
        let call = self.network.by_reference().on(verb, self.sandbox);
        call.ifname(self.interface)
    }

    /// Replaces the limits by one of what the container receives.
    fn with_ingress(self, rate: u64, burst: u64) -> Self {
        let limits = json!({"ingressRate": rate, "ingressBurst": burst});
        let network = self.network.with("runtimeConfig.bandwidth", limits);
        Self { network, ..self }
    }

    /// Returns a DEL with only the names.
    fn bare_del(&self) -> Invocation {
        let network = self.network.clone().without("prevResult");
        let call = network.on("DEL", self.sandbox);
        call.ifname(self.interface).without("CNI_NETNS")
    }

    /// Returns whether the attachment has a second egress limit in `nf_tables`.
    fn has_backstop(&self, host: &Host) -> bool {
        let owner = format!("\"cni:pods/{}/{}\"", self.sandbox.name(), self.interface);
        host.rules_from("bridge cni-bandwidth").contains(&owner)
    }

    /// Checks that packets pass both limits.
    #[track_caller]
    fn expect_reached(&self, host: &Host) {
        let address = &self.sandbox.addresses(self.interface)[0];
        let address = address.split('/').next().unwrap();
        assert!(host.pings(address), "{address}");
    }
}

/// Returns the host end of a sandbox on the bridge, and limits behind it with the bursts that
/// containerd and CRI-O pass if none is configured.
fn chain<'h>(host: &'h Host, sandbox: &'h Sandbox) -> (String, Network<'h>) {
    let eth0 = Attachment::new(host, sandbox, "eth0");
    let bursts = [("ingress", 4_294_967_295_u64), ("egress", 34_359_738_359)];
    let network = bursts.into_iter().fold(eth0.network, |it, (key, bits)| {
        it.with(&format!("runtimeConfig.bandwidth.{key}Burst"), bits)
    });
    (eth0.host_link, network)
}

/// Returns the names of all ifbs.
fn ifbs(host: &Host) -> Vec<String> {
    let ifbs = host.ifbs();
    let names = ifbs.iter().map(|ifb| ifb["ifname"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

#[test]
fn ifb_of_another_interface_of_the_container_is_not_changed() {
    let host = Host::new();
    // The nf_tables tables stay after the host's first attachment.
    let warm = host.sandbox("warm");
    let pod = Attachment::new(&host, &warm, "eth0");
    for verb in ["ADD", "DEL"] {
        pod.ours(verb).ok();
    }
    host.bridge_v4().del(&warm);
    let a = host.sandbox("a");
    let [eth0, net1] = ["eth0", "net1"].map(|interface| Attachment::new(&host, &a, interface));
    net1.by_reference("ADD").ok();
    let theirs = ifbs(&host).remove(0);
    let before = host.snapshot();
    let all = eth0.ours("DEL");
    for delete in [all.clone(), all.without("CNI_NETNS"), eth0.bare_del()] {
        let result = eth0.ours("ADD").ok();
        assert_eq!(&result, eth0.network.config().get("prevResult").unwrap());
        eth0.ours("CHECK").ok();
        assert_eq!(ifbs(&host), [theirs.as_str()]);
        eth0.expect_reached(&host);
        net1.expect_reached(&host);
        let deleted = delete.run();
        assert!(
            deleted.stderr.contains(&theirs) && deleted.stderr.contains(&net1.host_link),
            "{deleted:#?}"
        );
        assert_eq!(deleted.ok(), Value::Null);
        assert_eq!(ifbs(&host), [theirs.as_str()]);
        net1.expect_reached(&host);
        // The limits of the pair disappear with the pair.
        host.tc(&format!("qdisc delete dev {} root", eth0.host_link));
        a.tc("qdisc delete dev eth0 root");
        host.snapshot().assert_same_as(&before);
    }
    net1.ours("DEL").ok();
    assert!(ifbs(&host).is_empty());
}

#[test]
fn reference_finds_no_ifb_of_ours_and_our_del_removes_the_backstop_after_its_del() {
    let host = Host::new();
    let a = host.sandbox("a");
    let eth0 = Attachment::new(&host, &a, "eth0");
    for our_del in [eth0.ours("DEL"), eth0.bare_del()] {
        eth0.ours("ADD").ok();
        let check = eth0.by_reference("CHECK").run();
        assert!(check.stdout.contains("get ifb device"), "{check:#?}");
        eth0.by_reference("DEL").ok();
        assert!(eth0.has_backstop(&host));
        our_del.ok();
        assert!(!eth0.has_backstop(&host));
    }
}

#[test]
fn reference_checks_ingress_limits_of_ours_with_a_chosen_burst() {
    let host = Host::new();
    for (name, bits, is_as_it_would_be) in [
        ("chosen", 1_000_000, true),
        // Values of containerd and CRI-O for an unset burst.
        ("containerd", 4_294_967_295, false),
        ("cri-o", 34_359_738_359, false),
    ] {
        let sandbox = host.sandbox(name);
        let eth0 = Attachment::new(&host, &sandbox, "eth0").with_ingress(10_000_000, bits);
        eth0.ours("ADD").ok();
        let check = eth0.by_reference("CHECK").run();
        if is_as_it_would_be {
            check.ok();
        } else {
            assert!(check.stdout.contains("Limit doesn't match"), "{check:#?}");
        }
    }
}

/// The reference passes the burst as a time in units of 64 ns, and computes that from whole
/// microseconds.
#[test]
fn reference_checks_ingress_limits_of_ours_whose_burst_it_rounds() {
    let host = Host::new();
    for (name, bits) in [("whole", 3_000_000), ("fraction", 1_000_000)] {
        let sandbox = host.sandbox(name);
        let eth0 = Attachment::new(&host, &sandbox, "eth0").with_ingress(30_000_000, bits);
        eth0.ours("ADD").ok();
        eth0.ours("CHECK").ok();
        eth0.by_reference("CHECK").ok();
    }
}

#[test]
fn reference_limits_one_interface_of_a_container_and_deletes_its_ifb_with_any() {
    let host = Host::new();
    let a = host.sandbox("a");
    let [eth0, net1] = ["eth0", "net1"].map(|interface| Attachment::new(&host, &a, interface));
    eth0.by_reference("ADD").ok();
    let second = net1.by_reference("ADD").run();
    assert!(second.stdout.contains("file exists"), "{second:#?}");
    eth0.expect_reached(&host);
    net1.by_reference("DEL").ok();
    assert!(ifbs(&host).is_empty());
    assert!(!host.pings("10.0.0.2"), "the filter still redirects");
}

#[test]
fn ifb_of_the_attachments_own_link_is_deleted() {
    let host = Host::new();
    let a = host.sandbox("a");
    let eth0 = Attachment::new(&host, &a, "eth0");
    let without_result = eth0.network.clone().without("prevResult");
    for delete in [
        eth0.ours("DEL"),
        without_result.on("DEL", &a),
        eth0.ours("DEL").without("CNI_NETNS"),
        eth0.ours("DEL").netns("/run/netns/gone"),
    ] {
        eth0.by_reference("ADD").ok();
        delete.ok();
        assert!(ifbs(&host).is_empty());
        host.tc(&format!("qdisc delete dev {} root", eth0.host_link));
        host.tc(&format!("qdisc delete dev {} ingress", eth0.host_link));
    }
}

#[test]
fn unused_ifb_is_deleted() {
    let host = Host::new();
    let a = host.sandbox("a");
    let eth0 = Attachment::new(&host, &a, "eth0");
    eth0.by_reference("ADD").ok();
    let theirs = ifbs(&host);
    eth0.bare_del().ok();
    assert_eq!(ifbs(&host), theirs, "its owner is unknown");
    host.bridge_v4().del(&a);
    eth0.bare_del().ok();
    assert!(ifbs(&host).is_empty());
}

#[test]
fn add_deletes_only_the_ifb_of_its_own_link() {
    let host = Host::new();
    let a = host.sandbox("a");
    let eth0 = Attachment::new(&host, &a, "eth0");
    eth0.by_reference("ADD").ok();
    let theirs = ifbs(&host).remove(0);
    host.tc(&format!("filter delete dev {} ingress", eth0.host_link));
    let refusal = eth0.ours("CHECK").error();
    refusal.expect(100, &["eth0 has no limit"]);
    eth0.ours("ADD").ok();
    assert_eq!(ifbs(&host), [theirs]);
    eth0.expect_reached(&host);
    eth0.ours("DEL").ok();
    assert!(ifbs(&host).is_empty(), "it is unused");
}

#[test]
fn limits_of_the_reference_are_checked_and_deleted() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (_, network) = chain(&host, &a);
    let result = network.by_reference().add(&a);
    network.check(&a, &result).ok();
    let chosen = network
        .clone()
        .with("runtimeConfig.bandwidth.ingressBurst", 400_000);
    let refusal = chosen.check(&a, &result).error();
    refusal.expect(100, &["burst 50000 bytes"]);
    network.del(&a);
    assert!(host.ifbs().is_empty());
}

#[test]
fn limits_of_the_reference_by_classes_are_checked_and_deleted() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (link, network) = chain(&host, &a);
    let result = network.by_reference().add(&a);
    let ifb = host.ifbs()[0]["ifname"].as_str().unwrap().to_owned();
    // Limits like those of 1.5.0 and 1.5.1: an unlimited and a limited class.
    for (link, rate) in [(&link, "10mbit"), (&ifb, "20mbit")] {
        host.tc(&format!("qdisc del dev {link} root"));
        host.tc(&format!(
            "qdisc add dev {link} root handle 1: htb default 30"
        ));
        let class = format!("class add dev {link} parent 1: classid");
        host.tc(&format!("{class} 1:1 htb rate 800gbit quantum 60000"));
        host.tc(&format!(
            "{class} 1:30 htb rate {rate} burst 500mb quantum 60000"
        ));
    }
    let asked = |bits: u64| {
        let network = network
            .clone()
            .with("runtimeConfig.bandwidth.ingressBurst", bits);
        network.with("runtimeConfig.bandwidth.egressBurst", bits)
    };
    asked(34_359_738_359).check(&a, &result).ok();
    let refusal = asked(400_000).check(&a, &result).error();
    refusal.expect(100, &[&link, &ifb]);
    let faster = network
        .clone()
        .with("runtimeConfig.bandwidth.ingressRate", 11_000_000);
    faster.check(&a, &result).error().expect(100, &[&link]);
    network.del(&a);
    assert!(host.ifbs().is_empty());
}

#[test]
fn limits_with_a_configured_burst_equal_the_references() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let chosen = |sandbox| {
        let (link, network) = chain(&host, sandbox);
        let network = network.with("runtimeConfig.bandwidth.ingressBurst", 400_000);
        (
            link,
            network.with("runtimeConfig.bandwidth.egressBurst", 800_000),
        )
    };
    let [(ours, network), (theirs, reference)] = [&a, &b].map(chosen);
    network.add(&a);
    let result = reference.by_reference().add(&b);
    let ifb = host.ifbs()[0]["ifname"].as_str().unwrap().to_owned();
    let of = |qdiscs: Vec<Value>| {
        let options = &qdiscs[0]["options"];
        ["rate", "burst", "lat"].map(|key| options[key].clone())
    };
    assert_eq!(of(host.qdiscs(&ours)), of(host.qdiscs(&theirs)));
    assert_eq!(of(a.qdiscs("eth0")), of(host.qdiscs(&ifb)));
    reference.check(&b, &result).ok();
    reference.by_reference().del(&b);
    assert!(host.ifbs().is_empty());
}

#[test]
fn add_replaces_the_ifb_of_the_reference() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (link, network) = chain(&host, &a);
    network.by_reference().add(&a);
    let result = network.add(&a);
    assert_eq!(&result, network.config().get("prevResult").unwrap());
    network.check(&a, &result).ok();
    assert!(host.ifbs().is_empty());
    assert_eq!(a.limit("eth0").unwrap().0, 2_500_000);
    // No qdisc `ingress` is left, so another program can hook in.
    host.tc(&format!("qdisc add dev {link} clsact"));
    assert!(host.pings("10.0.0.2"));
}

#[test]
fn add_over_an_ifb_of_the_reference_leaves_the_filters_of_others() {
    // The reference's filter has the priority 1.
    for place in ["prio 9 protocol ip", "prio 1 protocol all"] {
        let host = Host::new();
        let a = host.sandbox("a");
        let (link, network) = chain(&host, &a);
        network.by_reference().add(&a);
        let foreign = "u32 match ip dst 203.0.113.0/24 flowid 9:9";
        host.tc(&format!("filter add dev {link} ingress {place} {foreign}"));
        network.add(&a);
        assert!(host.ifbs().is_empty());
        let shown = host.tc(&format!("filter show dev {link} ingress"));
        let filters = shown.matches("flowid").count();
        assert!(filters == 1 && shown.contains("9:9"), "{place}: {shown}");
        assert!(host.pings("10.0.0.2"));
    }
}

#[test]
fn link_of_another_kind_with_the_name_of_the_references_ifb_is_left() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (_, network) = chain(&host, &a);
    network.by_reference().add(&a);
    let name = host.ifbs()[0]["ifname"].as_str().unwrap().to_owned();
    network.del(&a);
    assert!(!host.has_link(&name));
    host.ip(&format!("link add {name} type bridge"));
    let result = network.add(&a);
    network.check(&a, &result).ok();
    network.del(&a);
    assert_eq!(host.link(&name)["linkinfo"]["info_kind"], "bridge");
}
