//! A node that changes between two releases of this suite without draining: each release checks,
//! restores and removes what the other one attached.
//!
//! `scripts/test-upgrade.sh` names the former release. Otherwise the release under test is both.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tests::releases::{downgrade, releases, upgrade};
use tests::traffic::{tcp, tcp_by_port, udp_by_port};
use tests::{Chain, Host, PLUGINS, Place as _, Removal, Sandbox, Snapshot};

/// Chains that have all plugins together. `devices` is `bandwidth` with `podResources`.
const CHAINS: [&[&str]; 3] = [
    &["bridge", "portmap", "firewall", "tuning"],
    &["ptp", "portmap", "devices"],
    &["bridge", "portmap", "bandwidth"],
];

/// The places in [`CHAINS`] whose sandboxes do not reach each other, and without a bridge.
const ISOLATED: usize = 0;
const ROUTED: usize = 1;

/// The place in [`CHAINS`] whose addresses the plugin `static` gives.
const STATIC: usize = 2;

/// Ports of the first and of the second sandbox.
const PORTS: [[u16; 2]; 2] = [[8080, 8053], [8081, 8054]];

/// A host, a neighbour, and one chain by both releases.
struct Node<'h> {
    host: &'h Host,
    outside: Sandbox,
    chain: Chain<'h>,
}

impl<'h> Node<'h> {
    fn new(host: &'h Host, number: usize) -> Self {
        let chain = Chain::new(host, CHAINS[number]);
        let addresses = json!([
            {"address": "10.1.0.2/24", "gateway": "10.1.0.1"},
            {"address": "fd00:1::2/64", "gateway": "fd00:1::1"},
        ]);
        let fixed = json!({"type": "static", "addresses": addresses});
        let chain = match number {
            STATIC => chain.with("bridge", "ipam", &fixed),
            _ => chain,
        };
        let outside = host.outside();
        Self {
            host,
            outside,
            chain,
        }
    }

    /// Returns the chain by a release for the first or the second sandbox.
    fn by(&self, release: &Path, sandbox: usize) -> Chain<'h> {
        self.chain.clone().with_ports(PORTS[sandbox]).by(release)
    }

    /// Returns a snapshot after an attachment by each release, so that shared objects exist. Also
    /// returns whether both releases write the places of rules, by which a release recognizes the
    /// tables of another one. Builds from before the first release do not.
    fn warm(&self, releases: [&PathBuf; 2]) -> (Snapshot, bool) {
        let have_places = releases.map(|release| {
            let (warm, chain) = (self.host.sandbox("warm"), self.by(release, 0));
            let result = chain.add(&warm).unwrap();
            let rules = self.host.run("nft", &["list", "ruleset"]);
            chain.remove(Removal::Del, (&warm, &result)).unwrap();
            warm.remove();
            rules.contains(" 1/")
        });
        (self.host.snapshot(), have_places == [true; 2])
    }

    /// Checks that packets pass in all directions.
    #[track_caller]
    fn serves(&self, pod: &Sandbox, sandbox: usize) {
        let [web, names] = PORTS[sandbox].map(|port| format!("192.0.2.1:{port}"));
        assert!(tcp_by_port(&self.outside, &web, (pod, 80)).is_some());
        assert!(udp_by_port(&self.outside, &names, (pod, 53)).is_some());
        let local = web.replace("192.0.2.1", "127.0.0.1");
        assert!(tcp_by_port(self.host, &local, (pod, 80)).is_some());
        // The neighbour has no route to the sandbox.
        let source = tcp(pod, &self.outside, "192.0.2.2");
        assert_eq!(source, Some("192.0.2.1".parse().unwrap()));
    }

    #[track_caller]
    fn both_serve(&self, pods: [&Sandbox; 2]) {
        for (sandbox, pod) in pods.into_iter().enumerate() {
            self.serves(pod, sandbox);
        }
    }

    /// Checks that a release gives the ports of the first sandbox to no other one.
    #[track_caller]
    fn refuses_another(&self, release: &Path) {
        let (late, chain) = (self.host.sandbox("late"), self.by(release, 0));
        assert!(chain.add(&late).unwrap_err().contains("8080"));
        let forgotten = (&late, &Value::Null);
        chain.remove(Removal::DelForgotten, forgotten).unwrap();
    }

    /// Checks that nothing of an attachment is left. Rules without an owner belong to a release's
    /// tables, which the other one rewrites.
    #[track_caller]
    fn expect_nothing_left(&self, before: &Snapshot, what: &str) {
        let mut left = self.host.snapshot().differences(before);
        left.retain(|it| !it.starts_with("rules: ") || it.contains("cni:"));
        assert_eq!(left, Vec::<String>::new(), "{what}");
    }
}

/// Returns the IPv4 address of a result.
fn address(result: &Value) -> &str {
    let address = result["ips"][0]["address"].as_str().unwrap();
    address.split_once('/').unwrap().0
}

/// Runs CHECK of all plugins.
#[track_caller]
fn check(chain: &Chain<'_>, on: (&Sandbox, &Value)) {
    chain.check_first(chain.len(), on).unwrap();
}

/// Flushes all rules, and restores them by the plugins that have any.
fn flush_and_reload(host: &Host, chain: &Chain<'_>, on: (&Sandbox, &Value)) {
    host.run("nft", &["flush", "ruleset"]);
    for plugin in [
        "bridge",
        "ptp",
        "portmap",
        "firewall",
        "bandwidth",
        "devices",
    ] {
        if let Some(place) = chain.position(plugin) {
            chain.call(place, "RELOAD", on).ok();
        }
    }
}

fn attachment_of_one_is_handled_by_the_other([one, other]: [PathBuf; 2]) {
    for (number, plugins) in CHAINS.iter().enumerate() {
        let host = Host::new();
        let node = Node::new(&host, number);
        let (before, have_places) = node.warm([&one, &other]);
        // A build from before the first release does not know later limits.
        let is_checked = have_places || other == releases()[1];
        for (removal, name) in Removal::ALL.iter().zip(["a", "b", "c"]) {
            let a = host.sandbox(name);
            let result = node.by(&one, 0).add(&a).unwrap();
            node.serves(&a, 0);
            let chain = node.by(&other, 0);
            if have_places {
                check(&chain, (&a, &result));
            }
            flush_and_reload(&host, &chain, (&a, &result));
            node.serves(&a, 0);
            if is_checked {
                check(&chain, (&a, &result));
            }
            chain.remove(*removal, (&a, &result)).unwrap();
            assert_eq!(a.links(), ["lo"]);
            node.expect_nothing_left(&before, &format!("{plugins:?} {removal:?}"));
        }
    }
}

#[test]
fn attachment_of_the_former_release_is_checked_reloaded_and_removed() {
    attachment_of_one_is_handled_by_the_other(upgrade());
}

#[test]
fn attachment_is_checked_reloaded_and_removed_by_the_former_release() {
    attachment_of_one_is_handled_by_the_other(downgrade());
}

/// An ADD of one release beside a sandbox of the other one may rewrite the tables of both.
fn sandboxes_of_both_live_side_by_side([one, other]: [PathBuf; 2]) {
    for number in [ISOLATED, ROUTED] {
        let host = Host::new();
        let node = Node::new(&host, number);
        let (before, have_places) = node.warm([&one, &other]);
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let first = node.by(&one, 0).add(&a).unwrap();
        let second = node.by(&other, 1).add(&b).unwrap();
        let reach = tcp(&a, &b, address(&second)).is_some();
        assert_eq!(reach, number != ISOLATED);
        for release in [&one, &other] {
            if have_places {
                check(&node.by(release, 0), (&a, &first));
                check(&node.by(release, 1), (&b, &second));
            }
            node.by(release, 0).gc(&[&a, &b]).unwrap();
            node.both_serve([&a, &b]);
        }
        node.refuses_another(&other);
        node.both_serve([&a, &b]);
        node.by(&one, 0).remove(Removal::Del, (&a, &first)).unwrap();
        node.serves(&b, 1);
        let again = node.by(&one, 0).add(&a).unwrap();
        node.both_serve([&a, &b]);
        node.by(&other, 0).gc(&[&b]).unwrap();
        node.serves(&b, 1);
        node.by(&one, 0).remove(Removal::Del, (&a, &again)).unwrap();
        let late = node.by(&one, 1);
        late.remove(Removal::Del, (&b, &second)).unwrap();
        node.expect_nothing_left(&before, &format!("{:?}", CHAINS[number]));
    }
}

#[test]
fn new_sandboxes_live_beside_those_of_the_former_release() {
    sandboxes_of_both_live_side_by_side(upgrade());
}

#[test]
fn sandboxes_of_the_former_release_live_beside_existing_ones() {
    sandboxes_of_both_live_side_by_side(downgrade());
}

/// The former release keeps its own index beside the leases. Its cooldowns count, too.
fn leases_of_both_are_kept_apart([one, other]: [PathBuf; 2]) {
    let host = Host::new();
    let leases = host.host_local().with("ipam.reuseDelay", "1h");
    let [one, other] = [&one, &other].map(|it| leases.by(it));
    let pods = ["a", "b", "c", "d", "e"].map(|name| host.sandbox(name));
    for (pod, network) in pods.iter().zip([&one, &one, &other, &one]) {
        network.add(pod);
    }
    other.del(&pods[0]);
    one.del(&pods[2]);
    let result = other.add(&pods[4]);
    assert_eq!(result["ips"][0]["address"], "10.1.0.6/24");
    other.on("ADD", &pods[1]).error();
    let addresses = || host.leases("pods").into_keys().collect::<Vec<_>>();
    assert_eq!(addresses(), ["10.1.0.3", "10.1.0.5", "10.1.0.6"]);
    other.gc(&[&pods[3]]).ok();
    one.gc(&[&pods[3]]).ok();
    assert_eq!(addresses(), ["10.1.0.5"]);
    one.del(&pods[3]);
    assert!(addresses().is_empty());
}

#[test]
fn leases_of_the_former_release_are_kept_and_released() {
    leases_of_both_are_kept_apart(upgrade());
}

#[test]
fn leases_are_kept_and_released_by_the_former_release() {
    leases_of_both_are_kept_apart(downgrade());
}

/// cnitool finds the attachments by the cache, which it shares with runtimes.
fn cnitool_of_one_is_replaced_by_the_other([one, other]: [PathBuf; 2]) {
    let host = Host::new();
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = host.pods();
    let [one, other] = [&one, &other].map(|it| tool.by(it));
    one.add("pods", &a, &["8080:80", "8053:53/udp"]);
    other.add("pods", &b, &["8081:80"]);
    for tool in [&one, &other] {
        assert_eq!(tool.ps().len(), 2);
        host.run("nft", &["flush", "ruleset"]);
        tool.run(&["reload"]).ok();
        tool.on("check", "pods", &a).ok();
        tool.on("check", "pods", &b).ok();
        for (port, pod) in [(8080, &a), (8081, &b)] {
            let target = format!("192.0.2.1:{port}");
            assert!(tcp_by_port(&outside, &target, (pod, 80)).is_some());
        }
    }
    other.on("del", "pods", &a).ok();
    one.on("del", "pods", &b).ok();
    assert!(host.leases("pods").is_empty());
    let kept = fs::read_dir(tool.results()).unwrap().count();
    assert_eq!(kept, 0);
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(!rules.contains("cni:"), "{rules}");
}

#[test]
fn cnitool_knows_what_the_former_release_attached() {
    cnitool_of_one_is_replaced_by_the_other(upgrade());
}

#[test]
fn cnitool_of_the_former_release_knows_what_is_attached() {
    cnitool_of_one_is_replaced_by_the_other(downgrade());
}

/// A container on two networks that publish the same port: the second one takes the port over from
/// the record of the first one.
fn port_is_handed_over_between_releases([one, other]: [PathBuf; 2]) {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let ranges = json!([[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]]);
    let first = Chain::new(&host, &["bridge", "portmap"]);
    let second = first
        .clone()
        .with("bridge", "bridge", &json!("cni1"))
        .with("bridge", "isDefaultGateway", &json!(false))
        .with("bridge", "ipam.ranges", &ranges)
        .with("bridge", "name", &json!("more"))
        .with("portmap", "name", &json!("more"));
    let mut results = Vec::new();
    for (chain, release, interface) in [(&first, &one, "eth0"), (&second, &other, "eth1")] {
        let add = |place, before| {
            let run = chain.by(release).call(place, "ADD", (&a, before));
            run.ifname(interface).ok()
        };
        let result = add(0, &Value::Null);
        results.push(add(1, &result));
    }
    let is_served = || tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some();
    assert!(is_served());
    for place in [1, 0] {
        let delete = first.by(&other).call(place, "DEL", (&a, &results[0]));
        delete.ifname("eth0").ok();
    }
    // Only eth1 is left: it has no default route, so the answer needs one.
    a.ip("route add default via 10.2.0.1");
    assert!(is_served());
    for place in [1, 0] {
        let delete = second.by(&one).call(place, "DEL", (&a, &results[1]));
        delete.ifname("eth1").ok();
    }
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(!rules.contains("cni:"), "{rules}");
    assert_eq!(fs::read_dir("/run/cni/portmap").unwrap().count(), 0);
}

#[test]
fn port_is_handed_over_from_a_network_of_the_former_release() {
    port_is_handed_over_between_releases(upgrade());
}

#[test]
fn port_is_handed_over_by_the_former_release() {
    port_is_handed_over_between_releases(downgrade());
}

#[test]
fn loopback_is_handled_by_both_releases() {
    for [one, other] in [upgrade(), downgrade()] {
        let host = Host::new();
        let a = host.sandbox("a");
        let [one, other] = [&one, &other].map(|it| host.loopback().by(it));
        let result = one.add(&a);
        other.check(&a, &result).ok();
        other.del(&a);
        one.check(&a, &result).error();
    }
}

/// Plugins whose link lives in the sandbox alone.
const SINGLE: [&str; 4] = ["macvlan", "ipvlan", "vlan", "dummy"];

/// Leaves out plugins that the former release or the kernel lacks.
#[test]
fn links_in_the_sandbox_are_handled_by_both_releases() {
    let orders = [upgrade(), downgrade()];
    for ([one, other], plugin) in orders
        .iter()
        .flat_map(|it| SINGLE.map(|plugin| (it, plugin)))
    {
        let host = Host::new();
        let network = host.card().with("type", plugin).with("vlanId", 7);
        let has_both = [one, other].iter().all(|it| it.join(plugin).exists());
        if !has_both || !host.has_kind(plugin) {
            continue;
        }
        let [one, other] = [one, other].map(|it| network.by(it));
        let a = host.sandbox("a");
        let result = one.add(&a);
        other.check(&a, &result).ok();
        other.del(&a);
        assert!(a.links() == ["lo"] && host.leases("pods").is_empty());
    }
}

/// Plugins that the chains leave out have tests of their own here, except for those that no release had.
#[test]
fn every_plugin_changes_its_release() {
    let chains = CHAINS.iter().copied().flatten().copied();
    let names = chains.map(|it| if it == "devices" { "bandwidth" } else { it });
    let alone = ["host-local", "static", "loopback"];
    let new = ["host-device", "tap", "dhcp", "sbr", "vrf"];
    let tried: BTreeSet<_> = names.chain(alone).chain(SINGLE).chain(new).collect();
    assert_eq!(tried, PLUGINS.iter().copied().collect());
}
