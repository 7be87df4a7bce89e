//! bridge: dropped frames: forged ones, and duplicates on a promiscuous bridge.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::faults::{Harm, Trace, strace};
use tests::{Host, Network, Place as _, Sandbox};

fn guarded(host: &Host) -> Network<'_> {
    host.bridge().with("macspoofchk", true)
}

/// Changes the MAC of the sandbox's frames. The gateway knows the new one, so answers would arrive.
fn forge(sandbox: &Sandbox) {
    sandbox.ip("link set eth0 address 02:00:00:00:00:66");
}

#[test]
fn a_forged_mac_gets_nowhere() {
    let host = Host::new();
    let [a, b, free] = ["a", "b", "free"].map(|name| host.sandbox(name));
    guarded(&host).add(&a);
    guarded(&host).add(&b);
    host.bridge().add(&free);
    for sandbox in [&a, &b, &free] {
        assert!(sandbox.pings("10.1.0.1") && sandbox.pings("fd00:1::1"));
    }
    assert!(a.pings("10.1.0.3"));
    forge(&a);
    forge(&free);
    assert!(free.pings("10.1.0.1"), "whose network allows it");
    for address in ["10.1.0.1", "fd00:1::1", "10.1.0.3"] {
        assert!(!a.pings(address), "{address}");
    }
    assert!(b.pings("10.1.0.1"));
    a.ip("link set eth0 address 0a:58:0a:01:00:02");
    assert!(a.pings("10.1.0.1"));
}

/// The bridge must not learn the MAC either.
#[test]
fn a_pod_cannot_take_over_the_mac_of_another_pod() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    for sandbox in [&a, &b, &c] {
        guarded(&host).add(sandbox);
    }
    assert!(c.pings("10.1.0.3"));
    a.ip(&format!("link set eth0 address {}", b.mac("eth0")));
    assert!(!a.pings("10.1.0.4"));
    assert!(c.pings("10.1.0.3"));
    let learnt = host.run("bridge", &["fdb", "show", "br", "cni0"]);
    let places = learnt
        .lines()
        .filter(|line| line.starts_with(&b.mac("eth0")));
    let places: Vec<_> = places.collect();
    assert!(places.len() == 1, "{places:?}");
}

#[test]
fn the_mac_that_was_asked_for_is_the_one_that_may_send() {
    let host = Host::new();
    let a = host.sandbox("a");
    let asked = guarded(&host).with("runtimeConfig", json!({"mac": "02:00:00:00:00:07"}));
    asked.add(&a);
    assert!(a.pings("10.1.0.1"));
    forge(&a);
    assert!(!a.pings("10.1.0.1"));
}

/// A process that sets the MAC of its sandbox's `eth0` again and again, until this is dropped.
struct Forger(Child);

impl Forger {
    fn start(sandbox: &Sandbox, mac: &str) -> Self {
        let endless = format!("yes link set dev eth0 address {mac} | exec ip -force -batch -");
        let mut bash = Command::new("bash");
        bash.args(["-c", &endless]).process_group(0);
        bash.stdout(Stdio::null()).stderr(Stdio::null());
        Self(sandbox.enter(|| bash.spawn()).unwrap())
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.0.id().try_into().unwrap());
        // The processes may have ended by themselves.
        let _ = killpg(group, Signal::SIGKILL);
        drop(self.0.wait());
    }
}

#[test]
fn a_process_in_the_sandbox_cannot_choose_the_mac_during_add() {
    let host = Host::new();
    let forged = "02:00:00:00:00:66";
    for round in 0..10 {
        let a = host.sandbox(&format!("a{round}"));
        let process = Forger::start(&a, forged);
        let result = host.bridge_v4().with("macspoofchk", true).add(&a);
        drop(process);
        let given = &result["interfaces"][2]["mac"];
        assert_eq!(given, &format!("0a:58:0a:01:00:{:02x}", round + 2));
        let allowed = host.rules_from("bridge cni-bridge");
        assert!(!allowed.contains(forged), "round {round}: {allowed}");
        assert!(allowed.contains(given.as_str().unwrap()), "{allowed}");
    }
}

/// An IPAM plugin that is not ours runs when the link is up, so the sandbox can already send.
#[test]
fn a_forged_mac_gets_nowhere_while_the_ipam_plugin_uses_the_link() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ip("link add cni0 type bridge");
    host.ip("address add 10.5.0.1/24 dev cni0");
    let lease = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.5.0.2/24"}]});
    let body = format!(
        "[ $CNI_COMMAND = ADD ] || exit 0
        inside() {{ nsenter --net=$CNI_NETNS \"$@\" > /dev/null; }}
        inside ip address add 10.5.0.9/24 dev eth0
        inside ping -n -c 1 -W 2 10.5.0.1 && echo own >> /run/test/answered
        inside ip link set eth0 address 02:00:00:00:00:66
        inside ping -n -c 1 -W 2 10.5.0.1 && echo forged >> /run/test/answered
        inside ip address delete 10.5.0.9/24 dev eth0
        echo '{lease}'"
    );
    host.script("scripted", &body);
    let network = guarded(&host).with("ipam", json!({"type": "scripted"}));
    let result = network.add(&a);
    assert_eq!(fs::read_to_string("/run/test/answered").unwrap(), "own\n");
    // The result has the MAC that the container may send from, and the link has it again.
    let given = &result["interfaces"][2]["mac"];
    assert_eq!(given, &a.mac("eth0"));
    assert!(a.pings("10.5.0.1"));
    forge(&a);
    assert!(!a.pings("10.5.0.1"));
    network.del(&a);
    assert!(!host.rules_from("bridge cni-bridge").contains("cni:"));
}

#[test]
fn a_container_without_addresses_is_guarded_too() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = guarded(&host).without("ipam").with("isGateway", false);
    network.add(&a);
    network.add(&b);
    for (sandbox, address) in [(&a, "192.0.2.1/24"), (&b, "192.0.2.2/24")] {
        sandbox.ip(&format!("address add {address} dev eth0"));
    }
    assert!(a.pings("192.0.2.2"));
    forge(&a);
    assert!(!a.pings("192.0.2.2"));
}

#[test]
fn del_removes_the_guard_even_without_a_namespace() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    guarded(&host).add(&a);
    let result = guarded(&host).add(&b);
    a.unmount();
    host.bridge().on("DEL", &a).without("CNI_NETNS").ok();
    let listed = host.rules_from("bridge cni-bridge");
    assert!(!listed.contains("cni:pods/a/"), "{listed}");
    let port = &result["interfaces"][1]["name"];
    let element = format!("{port} comment \"cni:pods/b/eth0\"");
    assert!(listed.contains(&element), "{listed}");
    host.bridge().del(&b);
    assert!(!host.rules_from("bridge cni-bridge").contains("cni:"));
}

#[test]
fn gc_removes_guards_of_unlisted_attachments() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    guarded(&host).add(&a);
    guarded(&host).add(&b);
    guarded(&host).gc(&[&b]).ok();
    let listed = host.rules_from("bridge cni-bridge");
    assert!(
        !listed.contains("cni:pods/a/") && listed.contains("cni:pods/b/"),
        "{listed}"
    );
    forge(&b);
    assert!(!b.pings("10.1.0.1"));
}

/// The port of a bridge is guarded as long as it is up.
#[test]
fn a_failed_add_takes_the_port_down_before_it_removes_the_guard() {
    let host = Host::new();
    let a = host.sandbox("a");
    let unreachable = json!([{"dst": "10.9.0.0/16", "gw": "172.31.0.1"}]);
    let failing = guarded(&host).with("ipam.routes", unreachable);
    let file = host.dir().join("trace");
    failing.on("ADD", &a).under(&strace(&file)).error();
    let calls = fs::read_to_string(file).unwrap();
    let first = |word: &str| calls.lines().position(|line| line.contains(word));
    let (down, guard) = (
        first("ifi_flags=0, ifi_change=0x1"),
        first("NFT_MSG_DELSETELEM"),
    );
    assert!(down.unwrap() < guard.unwrap(), "{calls}");
    assert!(!host.rules_from("bridge cni-bridge").contains("cni:"));
}

#[test]
fn gc_keeps_the_guard_of_a_pair_that_it_cannot_delete() {
    let host = Host::new();
    let [first, a] = ["first", "a"].map(|name| host.sandbox(name));
    // In another pid namespace, GC deletes the pair in its own process.
    let apart = ["unshare", "--pid", "--fork", "--mount-proc"].map(str::to_owned);
    let file = host.dir().join("trace");
    guarded(&host).add(&first);
    let gc = guarded(&host).gc(&[]);
    gc.clone().under(&strace(&file)).under(&apart).ok();
    let calls = Trace::read(&file).calls("sendto").into_iter();
    let mut deletions = calls.filter(|it| it.line().contains("RTM_DELLINK"));
    let refused = deletions.next().unwrap().with(Harm::Refusal);
    guarded(&host).add(&a);
    let before = host.rules_from("bridge cni-bridge");
    refused.strikes(&gc, &file).under(&apart).error();
    assert_eq!(host.rules_from("bridge cni-bridge"), before);
    assert!(!host.leases("pods").is_empty());
    forge(&a);
    assert!(!a.pings("10.1.0.1"));
    gc.ok();
    assert!(!host.rules_from("bridge cni-bridge").contains("cni:"));
}

#[test]
fn check_reports_a_missing_guard() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = guarded(&host).add(&a);
    let check = || guarded(&host).check(&a, &result);
    assert_eq!(check().ok(), Value::Null);
    host.run("nft", &["flush", "set", "bridge", "cni-bridge", "sources"]);
    assert!(check().error().mentions("set sources"));
    host.run("nft", &["delete", "table", "bridge", "cni-bridge"]);
    assert!(check().error().mentions("chain prerouting"));
}

/// Creates a Service on `10.96.0.1` and `fd00:96::1` with one endpoint like kube-proxy, including
/// masquerading for a pod that reaches itself.
fn service(host: &Host) {
    let rules = "table inet service {
        chain prerouting {
            type nat hook prerouting priority dstnat;
            ip daddr 10.96.0.1 dnat ip to 10.1.0.2
            ip6 daddr fd00:96::1 dnat ip6 to fd00:1::2
        }
        chain postrouting {
            type nat hook postrouting priority srcnat;
            ct status dnat ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade
            ct status dnat ip6 saddr fd00:1::2 ip6 daddr fd00:1::2 masquerade
        }
    }";
    let file = host.dir().join("service.nft");
    fs::write(&file, rules).unwrap();
    host.run("nft", &["-f", file.to_str().unwrap()]);
}

/// Returns how many of five datagrams from `client` to the Service at `address` reach `pod`.
fn received((client, pod): (&Sandbox, &Sandbox), address: &str) -> usize {
    let any = if address.contains(':') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let listening = pod.enter(|| UdpSocket::bind(any).unwrap());
    listening
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let port = listening.local_addr().unwrap().port();
    let calling = client.enter(|| UdpSocket::bind(any).unwrap());
    let target = (address, port);
    for _ in 0..5 {
        calling.send_to(b"ping", target).unwrap();
    }
    std::iter::from_fn(|| listening.recv_from(&mut [0; 16]).ok()).count()
}

#[test]
fn a_promiscuous_bridge_delivers_every_frame_once() {
    let host = Host::new();
    if !host.show_bridged_frames(true) {
        return;
    }
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = host
        .bridge()
        .with("isDefaultGateway", true)
        .with("promiscMode", true);
    let result = network.add(&a);
    network.add(&b);
    service(&host);
    for address in ["10.96.0.1", "fd00:96::1", "10.1.0.2", "fd00:1::2"] {
        assert_eq!(received((&b, &a), address), 5, "{address}");
    }
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
    host.run("nft", &["flush", "table", "bridge", "cni-bridge"]);
    assert!(network.check(&a, &result).error().mentions("chain output"));
    for service in ["10.96.0.1", "fd00:96::1"] {
        let count = received((&b, &a), service);
        assert_eq!(count, 10, "without the rules there are two of each");
    }
}

/// Without netfilter the host's copy is the only one.
#[test]
fn a_promiscuous_bridge_without_netfilter_loses_nothing() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    assert!(!host.show_bridged_frames(false));
    let network = host
        .bridge()
        .with("isDefaultGateway", true)
        .with("promiscMode", true)
        .with("bridgeNfCall", false);
    network.add(&a);
    network.add(&b);
    service(&host);
    for service in ["10.96.0.1", "fd00:96::1"] {
        assert_eq!(received((&b, &a), service), 5, "{service}");
        assert_eq!(received((&a, &a), service), 5, "{service}");
    }
}

#[test]
fn a_pod_reaches_itself_through_a_service_by_hairpin() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge().with("isDefaultGateway", true);
    network.with("hairpinMode", true).add(&a);
    service(&host);
    for service in ["10.96.0.1", "fd00:96::1"] {
        assert_eq!(received((&a, &a), service), 5, "{service}");
    }
}
