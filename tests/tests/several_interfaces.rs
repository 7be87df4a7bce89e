//! Sandboxes with several interfaces of different plugins, as Multus makes them. `.ci/run` also runs
//! this file in a virtual machine, because this machine's kernel may lack some kinds of links.

use std::path::Path;

use serde_json::{Value, json};
use tests::dhcp::{Daemon, SOCKET};
use tests::{Dnsmasq, Host, Network, Place as _, Sandbox, at_once};

/// The networks, each with the address of the host in it. The others lead to no host.
const NETWORKS: [(&str, Option<&str>); 9] = [
    ("pods", Some("10.9.0.1")),
    ("lan", Some("10.1.0.1")),
    ("rack", Some("10.5.0.1")),
    ("inner", None),
    ("machines", None),
    ("leased", Some("10.6.0.1")),
    ("tagged", Some("10.7.0.1")),
    ("shared", Some("10.11.0.1")),
    ("idle", None),
];

/// Returns the plugins of a network: the cluster's bridge, a macvlan and the card `ens5`, each with
/// policy routing, a macvlan on the first one, a tap, in a VRF if the kernel has VRFs, a macvlan with
/// DHCP, a VLAN, an ipvlan and a dummy.
fn plugins<'h>(host: &'h Host, name: &str) -> Vec<Network<'h>> {
    let named = |network: Network<'h>| network.with("name", name);
    let of = |network: Network<'h>, number: u8| {
        let ranges = json!([[{"subnet": format!("10.{number}.0.0/24")}]]);
        named(network).with("ipam.ranges", ranges)
    };
    let after = |plugin: &str| named(host.bandwidth()).with("type", plugin);
    match name {
        "pods" => vec![of(host.bridge_v4(), 9).with("isDefaultGateway", true)],
        "lan" => {
            let routes = json!([{"dst": "0.0.0.0/0"}]);
            // Else, each interface answers for the addresses of all.
            let own = json!({"net.ipv4.conf.IFNAME.arp_ignore": "1"});
            let tuning = after("tuning").with("sysctl", own);
            let lan = of(host.card(), 1).with("ipam.routes", routes);
            vec![lan, after("sbr"), tuning]
        }
        "rack" => vec![of(host.nic(), 5), after("sbr")],
        "inner" => {
            let inner = named(host.card()).without("ipam").with("master", "net1");
            vec![inner.with("linkInContainer", true)]
        }
        "machines" => {
            let vrf = after("vrf").with("vrfname", "blue");
            let vrf = host.has_kind("vrf").then_some(vrf);
            [of(host.tap(), 8)].into_iter().chain(vrf).collect()
        }
        "leased" => {
            let ipam = json!({"type": "dhcp", "daemonSocketPath": SOCKET});
            vec![named(host.card()).with("master", "rail").with("ipam", ipam)]
        }
        "tagged" => {
            let tagged = of(host.single("vlan"), 7).with("master", "rail");
            vec![tagged.with("vlanId", 100)]
        }
        "shared" => vec![of(host.single("ipvlan"), 11).with("master", "bus")],
        "idle" => vec![of(host.single("dummy"), 12)],
        _ => panic!("{name}"),
    }
}

/// An interface of a sandbox: the plugins of its network, and the result of ADD.
struct Part<'h> {
    a: &'h Sandbox,
    interface: String,
    plugins: Vec<Network<'h>>,
    result: Value,
}

impl<'h> Part<'h> {
    /// Runs ADD of the plugins.
    fn attach(a: &'h Sandbox, interface: String, plugins: Vec<Network<'h>>) -> Self {
        let mut part = Self {
            a,
            interface,
            plugins,
            result: Value::Null,
        };
        for place in 0..part.plugins.len() {
            part.result = part.call("ADD", &part.plugins[place]).ok();
        }
        part
    }

    fn network(&self) -> &str {
        self.plugins[0].config()["name"].as_str().unwrap()
    }

    fn call(&self, verb: &str, network: &Network<'_>) -> tests::Invocation {
        let network = match &self.result {
            Value::Null => network.clone(),
            result => network.clone().with("prevResult", result.clone()),
        };
        network.on(verb, self.a).ifname(&self.interface)
    }

    fn check(&self) {
        for network in &self.plugins {
            self.call("CHECK", network).ok();
        }
    }

    fn detach(&self) {
        for network in self.plugins.iter().rev() {
            self.call("DEL", network).ok();
        }
    }

    /// Runs GC of the network. The runtime lists these interfaces.
    fn collect(&self, listed: &[&Self]) {
        let entry = |it: &&Self| json!({"containerID": it.a.name(), "ifname": it.interface});
        let listed: Vec<_> = listed.iter().map(entry).collect();
        for network in &self.plugins {
            let network = network.clone().with("cniVersion", "1.1.0");
            let network = network.with_key("cni.dev/valid-attachments", json!(listed));
            network.call("GC").ok();
        }
    }

    /// Checks that the host is reached from the address of the interface.
    fn expect_reached(&self) {
        let host = NETWORKS.iter().find(|it| it.0 == self.network());
        if let Some(host) = host.unwrap().1 {
            let source = self.a.addresses(&self.interface).remove(0);
            let source = source.split('/').next().unwrap();
            assert!(self.a.pings_from(source, host), "{source} {host}");
        }
    }

    fn is_in_vrf(&self) -> bool {
        self.plugins.iter().any(|it| it.config()["type"] == "vrf")
    }
}

/// A host with cards, and a DHCP server on the network of one of them.
struct Office {
    host: Host,
    _server: Dnsmasq,
    _daemon: Daemon,
}

impl Office {
    /// Creates it, with all that attachments share.
    fn new() -> Self {
        let host = Host::new();
        host.card();
        host.nic();
        host.ip("address delete 10.1.0.1/24 dev switch");
        host.ip("address add 10.5.0.1/24 dev switch");
        for (card, other, address) in [
            ("rail", "depot", "10.6.0.1/24"),
            ("bus", "garage", "10.11.0.1/24"),
        ] {
            host.ip(&format!("link add {card} type veth peer name {other}"));
            host.ip(&format!("address add {address} dev {other}"));
            host.sh(&format!("ip link set {card} up; ip link set {other} up"));
        }
        if host.has_kind("vlan") {
            host.ip("link add link depot name depot.100 type vlan id 100");
            host.ip("address add 10.7.0.1/24 dev depot.100");
            host.ip("link set depot.100 up");
        }
        let range = "--dhcp-range=10.6.0.50,10.6.0.99,255.255.255.0";
        let options = [range, "--dhcp-authoritative", "--no-ping"];
        let office = Self {
            _server: Dnsmasq::start(&host, "depot", &options),
            _daemon: Daemon::start(&host),
            host,
        };
        let first = office.host.sandbox("first");
        for part in office.attach_all(&first) {
            part.detach();
        }
        office
    }

    /// Gives the sandbox an interface of each network in turn.
    fn attach<'h>(&'h self, a: &'h Sandbox, networks: &[&str]) -> Vec<Part<'h>> {
        let known = networks.iter().filter(|it| match **it {
            "tagged" => self.host.has_kind("vlan"),
            "shared" => self.host.has_kind("ipvlan"),
            "idle" => self.host.has_kind("dummy"),
            _ => true,
        });
        let parts = known.enumerate().map(|(place, name)| {
            let interface = match place {
                0 => "eth0".to_owned(),
                place => format!("net{place}"),
            };
            Part::attach(a, interface, plugins(&self.host, name))
        });
        parts.collect()
    }

    fn attach_all<'h>(&'h self, a: &'h Sandbox) -> Vec<Part<'h>> {
        self.attach(a, &NETWORKS.map(|it| it.0))
    }

    fn expect_nothing_left(&self, a: &Sandbox) {
        let leases = NETWORKS.map(|it| self.host.leases(it.0).len());
        assert_eq!(leases, [0; 9]);
        assert!(tests::dhcp::records().is_empty());
        let records = ["witness", "host-device", "sbr", "tuning", "vrf"].map(|it| {
            let directory = Path::new("/run/cni").join(it);
            directory.read_dir().map_or(0, Iterator::count)
        });
        assert_eq!(records, [0; 5]);
        // The kernel adds a rule with the first VRF, and keeps it.
        let rules = a.ip("rule");
        let rules = rules.lines().filter(|it| !it.contains("l3mdev-table"));
        assert_eq!(rules.count(), 3, "{}", a.ip("rule"));
    }
}

/// Checks that the sandboxes have the interfaces `left` and no others, and that each of these passes
/// CHECK and reaches its network.
fn expect_left(sandboxes: &[&Sandbox], left: &[&Part<'_>]) {
    let has_lan = left.iter().any(|it| it.network() == "lan");
    at_once(left, |part| {
        // The kernel makes the inner link one of the card, so it outlives its master; but its
        // master's name is compared.
        if part.network() != "inner" || has_lan {
            part.check();
        }
        assert!(part.a.has_link(&part.interface));
        part.expect_reached();
    });
    for a in sandboxes {
        let own = left.iter().filter(|it| it.a.name() == a.name());
        let has_vrf = own.clone().any(|it| it.is_in_vrf());
        let count = own.count() + usize::from(has_vrf) + 1;
        assert_eq!(a.links().len(), count, "{:?}", a.links());
    }
}

#[test]
fn interfaces_go_in_any_order_while_each_network_is_collected() {
    let office = Office::new();
    let before = office.host.snapshot();
    let a = office.host.sandbox("a");
    let parts = office.attach_all(&a);
    // 5 has no common divisor with the number of interfaces.
    let order = (1..=parts.len()).map(|number| number * 5 % parts.len());
    let order: Vec<_> = order.map(|place| &parts[place]).collect();
    for (done, two) in order.chunks(2).enumerate() {
        let left = &order[done * 2 + two.len()..];
        // The two are detached, the other networks are collected at the same time.
        at_once(&order, |part| {
            if two.iter().any(|it| it.interface == part.interface) {
                part.detach();
            } else {
                part.collect(left);
            }
        });
        expect_left(&[&a], left);
    }
    office.host.snapshot().assert_same_as(&before);
    office.expect_nothing_left(&a);
}

#[test]
fn gc_of_a_network_leaves_the_others_of_the_sandbox() {
    let office = Office::new();
    let before = office.host.snapshot();
    let a = office.host.sandbox("a");
    let parts = office.attach_all(&a);
    let mut left: Vec<_> = parts.iter().collect();
    at_once(&parts, |part| part.collect(&left));
    expect_left(&[&a], &left);
    while !left.is_empty() {
        let two: Vec<_> = left.drain(..left.len().min(2)).collect();
        at_once(&two, |part| part.collect(&[]));
        expect_left(&[&a], &left);
    }
    office.host.snapshot().assert_same_as(&before);
    office.expect_nothing_left(&a);
}

/// A pod has two interfaces of the same network.
#[test]
fn interfaces_of_the_same_network_are_told_apart() {
    let office = Office::new();
    let before = office.host.snapshot();
    let [a, b] = ["a", "b"].map(|name| office.host.sandbox(name));
    let networks = ["lan", "leased", "shared", "idle", "machines"];
    let twice = networks.map(|it| [it; 2]).concat();
    let (of_a, of_b) = (office.attach(&a, &twice), office.attach(&b, &networks));
    let (first, second): (Vec<_>, Vec<_>) = of_a.chunks(2).map(|it| (&it[0], &it[1])).unzip();
    let mut left = second.clone();
    left.extend(&of_b);
    at_once(&first, |part| part.detach());
    at_once(&second, |part| part.collect(&left));
    expect_left(&[&a, &b], &left);
    left.drain(..second.len());
    at_once(&second, |part| part.collect(&left));
    expect_left(&[&a, &b], &left);
    at_once(&of_b, Part::detach);
    office.host.snapshot().assert_same_as(&before);
    for a in [&a, &b] {
        office.expect_nothing_left(a);
    }
}
