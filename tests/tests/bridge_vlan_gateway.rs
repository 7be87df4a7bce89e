//! bridge: the host's end of a VLAN. The tests need a kernel with VLAN filtering and 802.1q.

use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use tests::vlans::{access, other};
use tests::{Host, Place as _, Sandbox, eventually, run, traffic};

/// Creates br0 with the host's address and its uplink as a port.
fn lan(host: &Host) -> Sandbox {
    let outside = host.outside();
    for change in [
        "address flush dev uplink",
        "link add br0 type bridge",
        "link set uplink master br0",
        "address add 192.0.2.1/24 dev br0",
        "link set br0 up",
    ] {
        host.ip(change);
    }
    assert!(eventually(|| outside.pings("192.0.2.1")));
    outside
}

/// A ping every 200 ms until it is stopped.
struct Pinging(Child);

impl Pinging {
    fn start(from: &Sandbox, address: &str) -> Self {
        let mut ping = Command::new("ping");
        ping.args(["-n", "-q", "-i", "0.2", address]);
        Self(from.enter(|| ping.stdout(Stdio::piped()).spawn()).unwrap())
    }

    /// Returns how many were sent and how many remained unanswered; the last one may be in transit.
    fn stop(self) -> (u32, u32) {
        run("kill", &["-INT", &self.0.id().to_string()]);
        let output = self.0.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let counts = text.lines().find(|it| it.contains("transmitted")).unwrap();
        let mut counts = counts.split(' ').filter_map(|it| it.parse::<u32>().ok());
        let (sent, answered) = (counts.next().unwrap(), counts.next().unwrap());
        (sent, sent - answered)
    }
}

#[test]
fn gateway_of_a_vlan_is_on_its_link_and_the_result_reports_it() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = access(&host);
    let result = network.add(&a);
    network.add(&b);
    let names = result["interfaces"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!((names[0], names[2], names[3]), ("cni0", "eth0", "cni0.100"));
    assert_eq!(result["ips"][0]["interface"], 2);
    assert_eq!(host.addresses("cni0.100"), ["10.1.0.1/24", "fd00:1::1/64"]);
    assert_eq!(host.addresses("cni0"), [] as [&str; 0]);
    for address in ["10.1.0.1", "fd00:1::1", "10.1.0.3", "fd00:1::3"] {
        assert!(a.pings(address), "{address}");
    }
    assert!(host.pings("10.1.0.2"));
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
    assert_eq!(
        host.sysctl("net/ipv6/conf/cni0.100/accept_ra").unwrap(),
        "0"
    );
    for sandbox in [&a, &b] {
        network.del(sandbox);
    }
    assert_eq!(host.links(), ["cni0", "cni0.100", "lo"]);
}

#[test]
fn this_suite_continues_with_the_vlan_link_of_the_reference() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = access(&host);
    let first = network.by_reference().add(&a);
    let second = network.on("ADD", &b).run();
    assert!(second.stderr.contains("cni0.100 is a veth"), "{second:?}");
    let second = second.ok();
    assert_eq!(second["interfaces"][3]["name"], "cni0.100");
    assert!(b.pings("10.1.0.1") && b.pings("10.1.0.2") && a.pings("10.1.0.1"));
    for (sandbox, result) in [(&a, &first), (&b, &second)] {
        assert_eq!(network.check(sandbox, result).ok(), Value::Null);
        network.del(sandbox);
    }
    // The host end of the reference's pair stays, as it does with the reference.
    assert!(host.has_link("cni0.100"));
}

#[test]
fn reference_continues_where_this_suite_made_the_gateway_of_a_vlan() {
    let host = Host::new();
    // VLAN 1 is the bridge's own, so ours adds the gateway to the bridge itself.
    let networks = [(access(&host), "1"), (other(&host, 1), "2")];
    for (ours, subnet) in networks {
        let [a, b] = ["a", "b"].map(|name| host.sandbox(&format!("{name}{subnet}")));
        let address = |host: &str| format!("10.{subnet}.0.{host}");
        let reference = ours.by_reference();
        ours.add(&a);
        let result = reference.add(&b);
        let pings = || a.pings(&address("1")) && host.pings(&address("2"));
        assert!(pings() && b.pings(&address("1")) && b.pings(&address("2")));
        assert_eq!(ours.check(&b, &result).ok(), Value::Null);
        reference.del(&b);
        assert!(pings());
        ours.del(&a);
    }
    let kind = |link: &str| host.link(link)["linkinfo"]["info_kind"].clone();
    assert_eq!([kind("cni0.100"), kind("cni0.1")], ["vlan", "veth"]);
    // The switch back, as the page of bridge describes it: two links have the gateway's address.
    let (own, c) = (other(&host, 1), host.sandbox("c"));
    let refusal = own.on("ADD", &c).error();
    refusal.expect(7, &["10.2.0.1", "cni0"]);
    host.ip("link delete cni0.1");
    own.add(&c);
    assert!(c.pings("10.2.0.1"));
}

/// Netfilter sees frames of the reference's pair twice, the second time with translated addresses.
#[test]
fn vlan_is_translated_and_masqueraded_where_netfilter_sees_bridged_frames() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    if !host.show_bridged_frames(true) {
        return;
    }
    let network = access(&host).with("isDefaultGateway", true);
    let network = network.with("ipMasq", true);
    network.add(&a);
    network.add(&b);
    let pair = other(&host, 200).with("isDefaultGateway", true);
    pair.with("ipMasq", true).by_reference().add(&c);
    let rules = "add table ip service; \
        add chain ip service translate { type nat hook prerouting priority dstnat; }; \
        add rule ip service translate ip daddr 10.96.0.1 dnat to 192.0.2.2; \
        add rule ip service translate ip daddr 10.96.0.2 dnat to 10.1.0.3; \
        add chain ip service strict { type filter hook forward priority filter; }; \
        add rule ip service strict ct state invalid drop";
    host.run("nft", &[rules]);
    let seen_as = traffic::tcp(&a, &outside, "192.0.2.2").unwrap();
    assert_eq!(seen_as.to_string(), "192.0.2.1");
    assert!(a.pings("10.96.0.1"), "a Service outside");
    assert!(a.pings("10.96.0.2"), "a Service in the VLAN");
    assert!(c.pings("10.2.0.1") && !c.pings("192.0.2.2"), "the pair");
}

#[test]
fn host_keeps_its_uplink_beside_a_network_in_the_vlan_of_its_bridge() {
    let host = Host::new();
    let [a, plain] = ["a", "plain"].map(|name| host.sandbox(name));
    let outside = lan(&host);
    let range = json!([[{"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.9"}]]);
    let untagged = host.bridge_v4().with("bridge", "br0");
    let untagged = untagged.with("name", "untagged").with("isGateway", false);
    untagged.with("ipam.ranges", range).add(&plain);
    let own = host.vlans("br0");
    assert_eq!(own, ["1 PVID Egress Untagged"]);
    for (network, gateway, address) in [
        (access(&host).with("vlan", 1), "10.1.0.1", "10.1.0.2"),
        (other(&host, 100), "10.2.0.1", "10.2.0.2"),
    ] {
        let network = network.with("bridge", "br0").with("forceAddress", true);
        let pinging = [(&outside, "192.0.2.1"), (&plain, "192.0.2.2")];
        let pinging = pinging.map(|(from, address)| Pinging::start(from, address));
        let result = network.add(&a);
        assert!(a.pings(gateway) && host.pings(address), "{gateway}");
        assert_eq!(network.check(&a, &result).ok(), Value::Null);
        network.del(&a);
        for pinging in pinging {
            let (sent, lost) = pinging.stop();
            assert!(sent > 5 && lost <= 1, "{lost} of {sent}: {gateway}");
        }
    }
    let own = host.vlans("br0");
    assert_eq!(own, ["1 PVID Egress Untagged", "100"]);
    assert_eq!(
        host.addresses("br0"),
        ["192.0.2.1/24", "10.1.0.1/24", "fd00:1::1/64"]
    );
    assert!(plain.pings("192.0.2.1") && outside.pings("192.0.2.1"));
}

#[test]
fn gateway_of_a_former_release_in_the_vlan_of_its_bridge_keeps_working() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = access(&host).with("vlan", 1);
    // The bridge as it was created; its own VLAN has a tag since then.
    host.ip("link add cni0 type bridge vlan_filtering 1");
    host.ip("link set cni0 up");
    host.run(
        "bridge",
        &["vlan", "add", "dev", "cni0", "vid", "1", "self"],
    );
    host.ip("link add link cni0 name cni0.1 type vlan id 1");
    let first = network.add(&a);
    assert_eq!(first["interfaces"][3]["name"], "cni0.1");
    network.add(&b);
    assert_eq!(host.vlans("cni0"), ["1"]);
    assert!(a.pings("10.1.0.1") && b.pings("10.1.0.1") && a.pings("10.1.0.3"));
    assert_eq!(network.check(&a, &first).ok(), Value::Null);
    // The page of bridge describes this for the host's own traffic.
    host.ip("link delete cni0.1");
    let own = "vlan add dev cni0 vid 1 pvid untagged self";
    host.run("bridge", &own.split(' ').collect::<Vec<_>>());
    network.del(&b);
    network.add(&b);
    assert!(a.pings("10.1.0.1") && b.pings("10.1.0.1"));
    assert!(a.pings("fd00:1::1") && !host.has_link("cni0.1"));
}

#[test]
fn bridge_is_as_it_was_where_its_vlan_has_a_link_of_another_name() {
    let host = Host::new();
    let a = host.sandbox("a");
    lan(&host);
    host.ip("link add link br0 name offices type vlan id 100");
    let refusal = access(&host).with("bridge", "br0").on("ADD", &a).error();
    refusal.expect(7, &["VLAN 100", "offices"]);
    assert_eq!(host.vlans("br0"), ["1 PVID Egress Untagged"]);
    assert!(!a.has_link("eth0") && host.leases("pods").is_empty());
}

#[test]
fn link_that_is_no_end_of_the_vlan_is_refused() {
    let host = Host::new();
    let a = host.sandbox("a");
    for kind in ["type bridge", "type veth peer other"] {
        host.ip(&format!("link add cni0.100 {kind}"));
        let refusal = access(&host).on("ADD", &a).error();
        refusal.expect(7, &["cni0.100", "VLAN 100"]);
        host.ip("link delete cni0.100");
        assert!(!a.has_link("eth0") && host.leases("pods").is_empty());
    }
}

#[test]
fn several_first_adds_share_one_vlan_link() {
    let host = Host::new();
    let pods: Vec<_> = (0..6)
        .map(|number| host.sandbox(&format!("p{number}")))
        .collect();
    let network = access(&host);
    thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(|| network.add(pod));
        }
    });
    assert!(pods.iter().all(|pod| pod.pings("10.1.0.1")));
    for pod in &pods {
        network.del(pod);
    }
    assert_eq!(host.links(), ["cni0", "cni0.100", "lo"]);
}
