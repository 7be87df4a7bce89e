//! bandwidth beside the reference, which names an ifb after the container and does not mark its
//! interface.

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

    /// Sets both bursts in the form of a runtime.
    fn with_burst(self, bits: u64) -> Self {
        let keys = ["ingressBurst", "egressBurst"];
        let keys = keys.map(|key| format!("runtimeConfig.bandwidth.{key}"));
        let network = keys.iter().fold(self.network, |it, key| it.with(key, bits));
        Self { network, ..self }
    }

    /// Returns a DEL with only the names.
    fn bare_del(&self) -> Invocation {
        let network = self.network.clone().without("prevResult");
        let call = network.on("DEL", self.sandbox);
        call.ifname(self.interface).without("CNI_NETNS")
    }

    /// Checks that packets through the ifb arrive.
    #[track_caller]
    fn expect_reached(&self, host: &Host) {
        let address = &self.sandbox.addresses(self.interface)[0];
        let address = address.split('/').next().unwrap();
        assert!(host.pings(address), "{address}");
    }
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
        let last = result["interfaces"].as_array().unwrap().last().unwrap();
        assert_ne!(last["name"], theirs.as_str());
        let checked = eth0.network.clone().with("prevResult", result.clone());
        checked.on("CHECK", &a).ok();
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
        host.tc(&format!("qdisc delete dev {} ingress", eth0.host_link));
        host.snapshot().assert_same_as(&before);
    }
    net1.ours("DEL").ok();
    assert!(ifbs(&host).is_empty());
}

#[test]
fn reference_deletes_the_limits_of_ours_and_checks_those_with_a_chosen_burst() {
    let host = Host::new();
    for (name, bits, is_as_it_would_be) in [
        ("chosen", 1_000_000, true),
        // Values of containerd and CRI-O for an unset burst.
        ("containerd", 4_294_967_295, false),
        ("cri-o", 34_359_738_359, false),
    ] {
        let sandbox = host.sandbox(name);
        let eth0 = Attachment::new(&host, &sandbox, "eth0").with_burst(bits);
        eth0.ours("ADD").ok();
        let check = eth0.by_reference("CHECK").run();
        if is_as_it_would_be {
            check.ok();
        } else {
            assert!(check.stdout.contains("Limit doesn't match"), "{check:#?}");
        }
        eth0.by_reference("DEL").ok();
        assert!(ifbs(&host).is_empty());
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
fn add_takes_over_only_the_ifb_of_its_own_link() {
    let host = Host::new();
    let a = host.sandbox("a");
    let eth0 = Attachment::new(&host, &a, "eth0");
    eth0.by_reference("ADD").ok();
    let theirs = ifbs(&host).remove(0);
    host.tc(&format!("filter delete dev {} ingress", eth0.host_link));
    let refusal = eth0.ours("CHECK").error();
    refusal.expect(100, &["ifb is gone"]);
    eth0.ours("ADD").ok();
    assert_eq!(ifbs(&host).len(), 2);
    assert_eq!(host.link(&theirs)["ifalias"], Value::Null);
    eth0.expect_reached(&host);
    eth0.ours("DEL").ok();
    assert!(ifbs(&host).is_empty(), "it is unused");
}
