//! vlan: traffic of a VLAN, its owner, VLANs in VLANs, and names that the host has, too.

use serde_json::json;
use tests::{Host, Network, Place as _, Sandbox};

/// A host whose uplink leads to another one, which is 10.1.0.1 in VLAN 100 and in VLAN 7 of VLAN 200.
struct Trunk {
    host: Host,
    _router: Sandbox,
}

impl Trunk {
    fn new() -> Self {
        let host = Host::new();
        let router = host.outside();
        for (parent, vlan, name) in [
            ("outside", 100, "red"),
            ("outside", 200, "outer"),
            ("outer", 7, "inner"),
        ] {
            router.ip(&format!(
                "link add link {parent} name {name} type vlan id {vlan}"
            ));
            router.ip(&format!("link set {name} up"));
        }
        router.ip("address add 10.1.0.1/24 dev red");
        router.ip("address add 10.2.0.1/24 dev inner");
        Self {
            host,
            _router: router,
        }
    }

    fn network(&self) -> Network<'_> {
        let network = self.host.single("vlan").with("master", "uplink");
        let ranges = json!([[{"subnet": "10.1.0.0/24"}]]);
        network.with("vlanId", 100).with("ipam.ranges", ranges)
    }
}

#[test]
fn pod_reaches_its_vlan_although_the_host_has_a_link_of_that_name() {
    let trunk = Trunk::new();
    // Linux 6.1 to 6.14 refuse the name in the sandbox, too.
    trunk.host.ip("link add eth0 type veth peer name eth1");
    let a = trunk.host.sandbox("a");
    let network = trunk.network();
    let result = network.add(&a);
    let expected = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "mac": trunk.host.mac("uplink"), "sandbox": a.path()}],
        "ips": [{"interface": 0, "address": "10.1.0.2/24", "gateway": "10.1.0.1"}],
    });
    assert_eq!(result, expected);
    assert!(a.pings("10.1.0.1"));
    network.check(&a, &result).ok();
    let other = network.clone().with("vlanId", 101);
    other.check(&a, &result).error().expect(100, &["VLAN 100"]);
    network.del(&a);
    assert_eq!(a.links(), ["lo"]);
    assert!(trunk.host.has_link("eth0") && trunk.host.leases("pods").is_empty());
}

#[test]
fn second_pod_of_a_vlan_is_refused_and_told_who_has_it() {
    let trunk = Trunk::new();
    let [a, b] = ["a", "b"].map(|name| trunk.host.sandbox(name));
    let network = trunk.network();
    network.add(&a);
    let refused = network.on("ADD", &b).error();
    refused.expect(
        100,
        &["VLAN 100 of uplink", "cni:pods/a/eth0", "linkInContainer"],
    );
    assert!(b.links() == ["lo"] && trunk.host.leases("pods").len() == 1);
    trunk
        .host
        .ip("link add link uplink name red type vlan id 101");
    let taken = network.clone().with("vlanId", 101).on("ADD", &b).error();
    taken.expect(100, &["VLAN 101 of uplink", "another program"]);
}

/// The ways out that the message names.
#[test]
fn several_pods_have_a_vlan_by_macvlan_or_by_links_of_their_own() {
    let trunk = Trunk::new();
    let [a, b] = ["a", "b"].map(|name| trunk.host.sandbox(name));
    let card = trunk
        .host
        .single("macvlan")
        .with("master", "uplink")
        .without("ipam");
    let inner = trunk
        .network()
        .with("master", "eth0")
        .with("linkInContainer", true);
    for pod in [&a, &b] {
        card.add(pod);
        inner.on("ADD", pod).ifname("net1").ok();
    }
    assert!(a.pings("10.1.0.1") && b.pings("10.1.0.1") && a.pings("10.1.0.3"));
    for pod in [&a, &b] {
        inner.on("DEL", pod).ifname("net1").ok();
        card.del(pod);
    }
    trunk
        .host
        .ip("link add link uplink name red type vlan id 100");
    trunk.host.ip("link set red up");
    let ipam = trunk.network().config()["ipam"].clone();
    let shared = card.with("master", "red").with("ipam", ipam);
    shared.add(&a);
    shared.add(&b);
    assert!(a.pings("10.1.0.1") && b.pings("10.1.0.1"));
}

#[test]
fn master_may_be_a_vlan_and_limits_the_mtu() {
    let trunk = Trunk::new();
    let a = trunk.host.sandbox("a");
    trunk
        .host
        .ip("link add link uplink name outer mtu 1400 type vlan id 200");
    trunk.host.ip("link set outer up");
    let ranges = json!([[{"subnet": "10.2.0.0/24"}]]);
    let network = trunk.network().with("master", "outer").with("vlanId", 7);
    let network = network.with("ipam.ranges", ranges);
    let large = network.clone().with("mtu", 1401);
    large
        .on("ADD", &a)
        .error()
        .expect(7, &["mtu", "1400 bytes of outer"]);
    network.add(&a);
    assert_eq!(a.link("eth0")["mtu"], 1400);
    assert!(a.pings("10.2.0.1"));
}

#[test]
fn keys_are_checked() {
    let trunk = Trunk::new();
    let a = trunk.host.sandbox("a");
    let refused = |network: Network<'_>, words: &[&str]| {
        network.on("ADD", &a).error().expect(7, words);
        assert_eq!(a.links(), ["lo"]);
    };
    refused(trunk.network().without("master"), &["master", "required"]);
    refused(
        trunk.network().without("ipam"),
        &["ipam", "needs addresses"],
    );
    refused(trunk.network().with("vlanId", 4095), &["vlanId", "4095"]);
    refused(trunk.network().with("vlanId", -1), &["vlanId", "-1"]);
}
