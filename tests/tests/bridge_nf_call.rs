//! bridge: netfilter sees the frames of its own bridge, and those of other bridges stay as they are.

use serde_json::{Value, json};
use tests::traffic::udp_by_port;
use tests::{Firewalld, Host, Network, Place as _, Sandbox, eventually};

const SYSCTLS: [&str; 2] = [
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
];

/// Arguments of a call for a pod of Kubernetes.
const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";

/// Returns a host on which netfilter sees no bridged frames; `None` if `br_netfilter` is not loaded.
fn host() -> Option<Host> {
    let host = Host::new();
    if !host.show_bridged_frames(true) {
        return None;
    }
    assert!(!host.show_bridged_frames(false));
    Some(host)
}

fn sysctls(host: &Host) -> [String; 2] {
    SYSCTLS.map(|it| host.sysctl(it).unwrap())
}

/// Returns the flags of a bridge: whether its own frames pass iptables and ip6tables.
fn flags(host: &Host, bridge: &str) -> [Value; 2] {
    let link = host.link(bridge);
    ["nf_call_iptables", "nf_call_ip6tables"].map(|it| link["linkinfo"]["info_data"][it].clone())
}

fn gateway(host: &Host) -> Network<'_> {
    host.bridge().with("isDefaultGateway", true)
}

/// Two virtual machines on a bridge of another program.
struct Machines([Sandbox; 2]);

impl Machines {
    fn on(host: &Host, bridge: &str) -> Self {
        host.ip(&format!("link add {bridge} type bridge"));
        host.ip(&format!("link set {bridge} up"));
        let machines = [1, 2].map(|number| {
            let machine = host.sandbox(&format!("{bridge}-{number}"));
            machine.set_sysctl("net/ipv6/conf/default/accept_dad", "0");
            let port = format!("{bridge}{number}");
            let name = machine.name();
            host.ip(&format!(
                "link add {port} type veth peer name eth0 netns {name}"
            ));
            host.ip(&format!("link set {port} master {bridge} up"));
            machine.ip(&format!("address add 198.51.100.{number}/24 dev eth0"));
            machine.ip(&format!(
                "address add 2001:db8:5::{number}/64 dev eth0 nodad"
            ));
            machine.ip("link set eth0 up");
            machine
        });
        let machines = Self(machines);
        // The kernel notices the carrier of new links late while others are deleted.
        assert!(eventually(|| machines.talk() == [true; 2]));
        machines
    }

    fn talk(&self) -> [bool; 2] {
        ["198.51.100.2", "2001:db8:5::2"].map(|it| self.0[0].pings(it))
    }
}

/// Drops all forwarded packets but those of pods, and makes Services that lead to pod `10.1.0.2` and
/// `fd00:1::2`.
fn set_up_firewall(host: &Host) {
    for (iptables, pods, service, pod) in [
        ("iptables", "10.1.0.0/24", "10.96.0.1", "10.1.0.2"),
        ("ip6tables", "fd00:1::/64", "fd00:96::1", "fd00:1::2"),
    ] {
        host.sh(&format!(
            "{iptables} -P FORWARD DROP
            {iptables} -A FORWARD -s {pods} -j ACCEPT
            {iptables} -A FORWARD -d {pods} -j ACCEPT
            {iptables} -t nat -A PREROUTING -d {service} -j DNAT --to-destination {pod}"
        ));
    }
}

/// Returns whether `client` reaches `pod` through the Services.
fn reaches_services(client: &Sandbox, pod: &Sandbox) -> [bool; 2] {
    ["10.96.0.1:53", "[fd00:96::1]:53"].map(|it| udp_by_port(client, it, (pod, 53)).is_some())
}

#[test]
fn frames_of_other_bridges_bypass_netfilter_and_services_work() {
    for keys in [
        json!({}),
        json!({"bridgeNfCall": "bridge"}),
        json!({"ipMasq": true}),
    ] {
        let Some(host) = host() else { return };
        set_up_firewall(&host);
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let earlier = Machines::on(&host, "br-vms");
        assert_eq!(earlier.talk(), [true; 2]);
        let keys = keys.as_object().unwrap().clone().into_iter();
        let network = keys.fold(gateway(&host), |it, (key, value)| it.with(&key, value));
        let result = network.add(&a);
        network.add(&b);
        let later = Machines::on(&host, "br-late");
        assert_eq!(earlier.talk(), [true; 2]);
        assert_eq!(later.talk(), [true; 2]);
        assert_eq!(reaches_services(&b, &a), [true; 2]);
        assert_eq!(sysctls(&host), ["0", "0"]);
        assert_eq!(flags(&host, "cni0"), [1, 1]);
        assert_eq!(flags(&host, "br-vms"), [0, 0]);
        assert_eq!(network.check(&a, &result).ok(), Value::Null);
    }
}

/// The firewall's own chain drops all packets without a rule.
#[test]
fn frames_of_other_bridges_are_not_dropped_by_firewalld_with_its_defaults() {
    let Some(host) = host() else { return };
    let _firewalld = Firewalld::start_with_defaults(&host);
    let machines = Machines::on(&host, "br-vms");
    assert_eq!(machines.talk(), [true; 2]);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    gateway(&host).on("ADD", &a).on_the_bus().ok();
    gateway(&host).on("ADD", &b).args(POD).on_the_bus().ok();
    assert_eq!(machines.talk(), [true; 2]);
    assert_eq!(Machines::on(&host, "br-late").talk(), [true; 2]);
    for sysctl in SYSCTLS {
        host.set_sysctl(sysctl, "1");
    }
    assert_eq!(machines.talk(), [false; 2], "it would drop them");
}

fn layer_2(host: &Host) -> Network<'_> {
    host.bridge().with("isGateway", false)
}

#[test]
fn layer_2_networks_change_nothing_unless_asked() {
    for number in 0..4 {
        let Some(host) = host() else { return };
        let a = host.sandbox("a");
        let addressed = layer_2(&host);
        let network = [
            addressed.clone(),
            addressed.without("ipam"),
            gateway(&host).with("ipMasq", true).without("ipam"),
            gateway(&host).with("bridgeNfCall", false),
        ];
        network[number].on("ADD", &a).args(POD).ok();
        assert_eq!(sysctls(&host), ["0", "0"]);
        assert_eq!(flags(&host, "cni0"), [0, 0]);
        let asked = layer_2(&host).with("bridgeNfCall", "bridge");
        asked.add(&host.sandbox("b"));
        assert_eq!(sysctls(&host), ["0", "0"]);
        assert_eq!(flags(&host, "cni0"), [1, 1]);
    }
}

#[test]
fn the_sysctls_are_set_for_pods_of_kubernetes_unless_a_bridge_of_another_program_has_ports() {
    let Some(host) = host() else { return };
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| host.sandbox(name));
    let add = |network: &Network<'_>, pod| network.on("ADD", pod).args(POD).run();
    // Ports of a network of this suite do not count, and a bridge without ports does not either.
    let other = gateway(&host).with("name", "other").with("bridge", "cni1");
    other
        .with("ipam.ranges", json!([[{"subnet": "10.2.0.0/24"}]]))
        .add(&a);
    let machines = Machines::on(&host, "br-vms");
    add(&gateway(&host), &b).ok();
    assert_eq!(
        (sysctls(&host), flags(&host, "cni0")),
        (["0", "0"].map(str::to_owned), [1, 1].map(Value::from))
    );
    assert_eq!(machines.talk(), [true; 2]);
    for port in ["br-vms1", "br-vms2"] {
        host.ip(&format!("link set {port} nomaster"));
    }
    gateway(&host).add(&c);
    assert_eq!(sysctls(&host), ["0", "0"], "no pod of Kubernetes");
    let outcome = add(&gateway(&host), &d);
    outcome.ok();
    assert_eq!(sysctls(&host), ["1", "1"]);
    assert_eq!(
        outcome.stderr.matches("from 0 to 1").count(),
        1,
        "{outcome:?}"
    );
}

#[test]
fn the_sysctls_are_set_where_the_host_is_named_and_the_change_is_reported_once() {
    for value in [json!("host"), json!(true)] {
        let Some(host) = host() else { return };
        let machines = Machines::on(&host, "br-vms");
        let network = gateway(&host).with("bridgeNfCall", value);
        let notes = |name: &str| {
            let outcome = network.on("ADD", &host.sandbox(name)).run();
            outcome.ok();
            let lines = outcome.stderr.lines();
            let notes = lines.filter(|it| it.contains("from 0 to 1"));
            notes.map(str::to_owned).collect::<Vec<_>>()
        };
        let both = "net.bridge.bridge-nf-call-iptables and net.bridge.bridge-nf-call-ip6tables";
        let changed = notes("a");
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert!(changed[0].contains(both) && changed[0].contains("bridgeNfCall"));
        assert_eq!(sysctls(&host), ["1", "1"]);
        assert_eq!(notes("b"), Vec::<String>::new());
        host.set_sysctl(SYSCTLS[0], "0");
        let changed = notes("c");
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert!(!changed[0].contains("ip6tables"), "{changed:?}");
        assert_eq!(notes("d"), Vec::<String>::new());
        assert_eq!(flags(&host, "br-vms"), [0, 0]);
        drop(machines);
    }
}

#[test]
fn check_reports_a_bridge_whose_frames_netfilter_does_not_see() {
    let Some(host) = host() else { return };
    let a = host.sandbox("a");
    let network = gateway(&host);
    let result = network.add(&a);
    host.ip("link set cni0 type bridge nf_call_ip6tables 0");
    let missing = ["cni0", "nf_call_ip6tables"];
    network.check(&a, &result).error().expect(100, &missing);
    let off = network.clone().with("bridgeNfCall", false);
    assert_eq!(off.check(&a, &result).ok(), Value::Null);
    let named = network.clone().with("bridgeNfCall", "host");
    named
        .check(&a, &result)
        .error()
        .expect(100, &["sysctl net.bridge.bridge-nf-call-iptables is 0"]);
    // The sysctls suffice.
    assert!(host.show_bridged_frames(true));
    host.ip("link set cni0 type bridge nf_call_iptables 0");
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
    assert_eq!(named.check(&a, &result).ok(), Value::Null);
}

#[test]
fn frames_of_machines_on_the_bridge_of_the_network_bypass_netfilter_unless_asked() {
    let Some(host) = host() else { return };
    set_up_firewall(&host);
    let machines = Machines::on(&host, "cni0");
    host.ip("tuntap add vnet0 mode tap");
    host.ip("link set vnet0 master cni0 up");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = gateway(&host);
    let outcome = network.on("ADD", &a).args(POD).run();
    let result = outcome.ok();
    assert!(outcome.stderr.contains("vnet0"), "{outcome:?}");
    assert_eq!(
        (sysctls(&host), flags(&host, "cni0")),
        (["0", "0"].map(str::to_owned), [0, 0].map(Value::from))
    );
    assert_eq!(machines.talk(), [true; 2]);
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
    network.with("bridgeNfCall", "bridge").add(&b);
    assert_eq!(flags(&host, "cni0"), [1, 1]);
    assert_eq!(machines.talk(), [false; 2]);
}

/// The elements against duplicate frames follow the bridge's own flag, too.
#[test]
fn a_promiscuous_bridge_with_its_own_flags_delivers_every_frame_once() {
    let Some(host) = host() else { return };
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    set_up_firewall(&host);
    let network = gateway(&host).with("promiscMode", true);
    let result = network.add(&a);
    network.add(&b);
    assert_eq!(sysctls(&host), ["0", "0"]);
    let elements = host.run("nft", &["list", "table", "bridge", "cni-bridge"]);
    assert!(
        elements.contains("10.1.0.2") && elements.contains("fd00:1::2"),
        "{elements}"
    );
    assert_eq!(reaches_services(&b, &a), [true; 2]);
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
}
