//! tuning: what ADD changes, CHECK compares and DEL restores.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Sandbox};

/// A sandbox on the bridge, for the plugin behind it in the chain.
struct Pod<'h> {
    host: &'h Host,
    sandbox: Sandbox,
    result: Value,
}

impl<'h> Pod<'h> {
    fn new(host: &'h Host, name: &str) -> Self {
        let sandbox = host.sandbox(name);
        let result = host.bridge().add(&sandbox);
        Self {
            host,
            sandbox,
            result,
        }
    }

    /// Returns a network with these keys.
    fn tuning(&self, keys: &Value) -> Network<'h> {
        let config = json!({"cniVersion": "1.0.0", "name": "pods", "type": "tuning"});
        let objects = [&config, keys].map(|it| it.as_object().unwrap());
        let mut network = self.host.bandwidth();
        for (key, value) in objects.into_iter().flatten() {
            network = network.with_key(key, value.clone());
        }
        network.with("prevResult", self.result.clone())
    }

    /// Returns what the interface has: MAC, MTU, promiscuous and all-multicast mode, transmit
    /// queue.
    fn link(&self) -> (String, Value, bool, bool, Value) {
        let link = self.sandbox.link("eth0");
        let flags = link["flags"].as_array().unwrap();
        let has = |flag: &str| flags.contains(&flag.into());
        let mac = link["address"].as_str().unwrap().to_owned();
        let (mtu, queue) = (link["mtu"].clone(), link["txqlen"].clone());
        (mac, mtu, has("PROMISC"), has("ALLMULTI"), queue)
    }

    fn record(&self) -> PathBuf {
        Path::new("/run/cni/tuning").join(format!("{}_eth0.json", self.sandbox.name()))
    }
}

fn every_setting() -> Value {
    json!({"mac": MAC, "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 500})
}

fn tuned() -> (String, Value, bool, bool, Value) {
    (MAC.to_owned(), json!(1400), true, true, json!(500))
}

const MAC: &str = "02:00:00:00:00:41";

#[test]
fn add_changes_every_setting_and_del_restores_it() {
    let host = Host::new();
    let pod = Pod::new(&host, "a");
    let before = pod.link();
    let network = pod.tuning(&every_setting());
    for _ in 0..2 {
        network.add(&pod.sandbox);
        assert_eq!(pod.link(), tuned());
    }
    network.del(&pod.sandbox);
    assert_eq!(pod.link(), before);
    assert!(!pod.record().exists());
    network.del(&pod.sandbox);
    let off = json!({"promisc": false, "mtu": 0, "allmulti": false, "txQLen": 0});
    pod.sandbox.ip("link set eth0 promisc on allmulticast on");
    pod.tuning(&off).add(&pod.sandbox);
    let (mac, mtu, ..) = before;
    assert_eq!(
        pod.link(),
        (mac, mtu, true, false, Value::Null),
        "promisc and mtu stay"
    );
}

#[test]
fn sysctls_are_set_in_the_sandbox_for_its_interface() {
    let host = Host::new();
    let pod = Pod::new(&host, "a");
    pod.sandbox.ip("link add eth0.7 type veth peer name eth1");
    let before = host.snapshot();
    let network = pod.tuning(&json!({"sysctl": {
        "net.core.somaxconn": "513",
        "net/ipv4/conf/IFNAME/arp_filter": "1",
        "net.ipv4.ip_local_port_range": "40000 41000",
        "net.ipv4.route.flush": "1",
    }}));
    let result = network.on("ADD", &pod.sandbox).ifname("eth0.7").ok();
    for (key, value) in [
        ("net/core/somaxconn", "513"),
        ("net/ipv4/conf/eth0.7/arp_filter", "1"),
        ("net/ipv4/conf/eth0/arp_filter", "0"),
        ("net/ipv4/ip_local_port_range", "40000\t41000"),
    ] {
        assert_eq!(pod.sandbox.sysctl(key).unwrap(), value, "{key}");
    }
    assert_eq!(result, pod.result, "the result is passed on");
    assert!(!Path::new("/run/cni/tuning").exists(), "nothing to restore");
    host.snapshot().assert_same_as(&before);
}

#[test]
fn sysctls_need_no_interface() {
    let host = Host::new();
    let pod = Pod::new(&host, "a");
    let network = pod.tuning(&json!({"sysctl": {"net.core.somaxconn": "513"}}));
    for network in [network.by_reference(), network] {
        network.on("ADD", &pod.sandbox).ifname("net7").ok();
        assert_eq!(pod.sandbox.sysctl("net/core/somaxconn").unwrap(), "513");
        let check = network.on("CHECK", &pod.sandbox).ifname("net7");
        check.error();
    }
}

#[test]
fn result_has_the_new_mac_and_from_1_1_0_on_the_new_mtu() {
    let host = Host::new();
    for version in [
        "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
    ] {
        let a = host.sandbox(version);
        let bridge = host.bridge().with("cniVersion", version);
        let mut expected = bridge.add(&a);
        // An interface of the host may have the same name.
        let of_host = json!({"name": "eth0", "mac": "02:00:00:00:00:99"});
        if version >= "0.3.0" {
            expected["interfaces"].as_array_mut().unwrap().push(of_host);
        }
        let network = host
            .tuning()
            .with("cniVersion", version)
            .with("mac", MAC.to_uppercase());
        let result = network.with("prevResult", expected.clone()).add(&a);
        if version >= "0.3.0" {
            expected["interfaces"][2]["mac"] = MAC.into();
        }
        if version >= "1.1.0" {
            expected["interfaces"][2]["mtu"] = 1400.into();
        }
        assert_eq!(result, expected, "{version}");
    }
}

#[test]
fn each_implementation_restores_what_the_other_changed() {
    let host = Host::new();
    let keys = json!({"mac": MAC, "mtu": 1400, "promisc": true, "allmulti": true});
    for (name, by_reference) in [("a", [false, true]), ("b", [true, false])] {
        let pod = Pod::new(&host, name);
        let before = pod.link();
        let [add, del] = by_reference.map(|by_reference| {
            let network = pod.tuning(&keys);
            if by_reference {
                network.by_reference()
            } else {
                network
            }
        });
        let result = add.add(&pod.sandbox);
        assert_eq!(
            pod.link(),
            (MAC.to_owned(), json!(1400), true, true, json!(1000))
        );
        assert!(pod.record().exists());
        for network in [&add, &del] {
            network.check(&pod.sandbox, &result).ok();
        }
        del.del(&pod.sandbox);
        assert_eq!(pod.link(), before);
        assert!(!pod.record().exists());
    }
}

#[test]
fn failed_add_restores_the_sandbox() {
    let host = Host::new();
    let pod = Pod::new(&host, "a");
    let (link, before) = (pod.link(), host.snapshot());
    let good = json!({"net.core.somaxconn": "513", "net.ipv4.conf.IFNAME.arp_filter": "1"});
    let mut bad = good.clone();
    bad["net.ipv4.zzz"] = "1".into();
    let mut invalid = good.clone();
    invalid["net.ipv4.tcp_syncookies"] = "many".into();
    for (keys, word) in [
        (json!({"sysctl": bad}), "net.ipv4.zzz"),
        (json!({"sysctl": invalid}), "tcp_syncookies"),
        (
            json!({"sysctl": good, "mac": MAC, "promisc": true, "mtu": 70_000}),
            "MTU",
        ),
        (json!({"sysctl": good, "mac": MAC, "mtu": 67}), "MTU"),
        (
            json!({"sysctl": good, "mac": MAC, "mtu": 1400, "dataDir": "/proc/none"}),
            "/proc/none",
        ),
    ] {
        let refusal = pod.tuning(&keys).on("ADD", &pod.sandbox).error();
        refusal.expect(100, &[word]);
        assert_eq!(pod.link(), link);
        assert_ne!(pod.sandbox.sysctl("net/core/somaxconn").unwrap(), "513");
        assert_eq!(
            pod.sandbox.sysctl("net/ipv4/conf/eth0/arp_filter").unwrap(),
            "0"
        );
        host.snapshot().assert_same_as(&before);
    }
    let gone = pod
        .tuning(&every_setting())
        .on("ADD", &pod.sandbox)
        .ifname("net1");
    gone.error().expect(100, &["net1"]);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn del_succeeds_without_sandbox_result_or_interface() {
    let host = Host::new();
    for case in ["netns", "result", "interface", "sandbox", "own"] {
        let pod = Pod::new(&host, case);
        pod.tuning(&every_setting()).add(&pod.sandbox);
        assert!(pod.record().exists());
        let network = pod.tuning(&every_setting());
        let del = network.on("DEL", &pod.sandbox);
        match case {
            "netns" => del.without("CNI_NETNS").ok(),
            "result" => network.without("prevResult").on("DEL", &pod.sandbox).ok(),
            "own" => del.netns("/proc/self/ns/net").ok(),
            "interface" => {
                pod.sandbox.ip("link delete eth0");
                del.ok()
            }
            _ => {
                host.end(&pod.sandbox);
                del.ok()
            }
        };
        assert!(!pod.record().exists(), "{case}");
    }
}

#[test]
fn verbs_leave_arp_notify_alone_unless_add_changes_the_mac() {
    let host = Host::new();
    let pod = Pod::new(&host, "a");
    let arp_notify = "net/ipv4/conf/eth0/arp_notify";
    pod.sandbox.set_sysctl(arp_notify, "0");
    let failing = pod.tuning(&json!({"mtu": 70_000}));
    failing.on("ADD", &pod.sandbox).error();
    let network = pod.tuning(&json!({"mtu": 1400}));
    network.add(&pod.sandbox);
    network.del(&pod.sandbox);
    assert_eq!(pod.sandbox.sysctl(arp_notify).unwrap(), "0");
    pod.tuning(&json!({"mac": MAC})).add(&pod.sandbox);
    assert_eq!(pod.sandbox.sysctl(arp_notify).unwrap(), "1");
}

/// The runtime calls DEL after a failed ADD, and until it succeeds.
#[test]
fn del_and_gc_succeed_although_data_dir_is_below_a_file() {
    let host = Host::new();
    let pod = Pod::new(&host, "a");
    fs::write("/run/file", "").unwrap();
    let network = pod.tuning(&json!({"mtu": 1400, "dataDir": "/run/file/tuning"}));
    let refused = network.on("ADD", &pod.sandbox).error();
    refused.expect(100, &["/run/file/tuning", "dataDir"]);
    network.del(&pod.sandbox);
    network.gc(&[]).ok();
}

#[test]
fn interface_that_cannot_be_restored_is_reported_and_del_succeeds() {
    let host = Host::new();
    let pod = Pod::new(&host, "a");
    let network = pod.tuning(&every_setting());
    network.add(&pod.sandbox);
    let mut record: Value = serde_json::from_slice(&fs::read(pod.record()).unwrap()).unwrap();
    record["mtu"] = 70_000.into();
    fs::write(pod.record(), record.to_string()).unwrap();
    let outcome = network.on("DEL", &pod.sandbox).run();
    assert_eq!(outcome.ok(), Value::Null);
    assert!(
        outcome.stderr.contains("MTU") && !pod.record().exists(),
        "{outcome:?}"
    );
    assert_ne!(pod.link().0, MAC, "the others are restored");
}

#[test]
fn invalid_record_is_reported_and_removed_by_del() {
    let host = Host::new();
    let pod = Pod::new(&host, "a");
    let network = pod.tuning(&every_setting());
    network.add(&pod.sandbox);
    fs::write(pod.record(), "half a rec").unwrap();
    let outcome = network.on("DEL", &pod.sandbox).run();
    assert_eq!(outcome.ok(), Value::Null);
    let message = format!("{} is not a valid record", pod.record().display());
    assert!(outcome.stderr.contains(&message), "{outcome:?}");
    assert!(!pod.record().exists());
}

#[test]
fn del_leaves_an_interface_of_another_sandbox_alone() {
    let host = Host::new();
    let [pod, other] = ["a", "b"].map(|name| Pod::new(&host, name));
    let network = pod.tuning(&every_setting());
    network.add(&pod.sandbox);
    other.sandbox.ip("link set eth0 mtu 1300");
    let before = other.link();
    // The path now leads to another sandbox.
    let del = network.on("DEL", &pod.sandbox);
    del.netns(other.sandbox.path()).ok();
    assert_eq!(other.link(), before);
    assert!(!pod.record().exists());
    // The kernel reuses the inode of a namespace, so the cookie decides.
    network.add(&other.sandbox);
    let mut record: Value = serde_json::from_slice(&fs::read(other.record()).unwrap()).unwrap();
    record["cookie"] = json!(1);
    fs::write(other.record(), record.to_string()).unwrap();
    network.del(&other.sandbox);
    assert_eq!(other.link(), tuned());
}

#[test]
fn two_in_one_chain_restore_what_was_before_both() {
    let host = Host::new();
    let pod = Pod::new(&host, "a");
    let before = pod.link();
    let first = pod.tuning(&json!({"mtu": 1400}));
    let result = first.add(&pod.sandbox);
    let second = pod.tuning(&json!({"mtu": 1300, "mac": MAC, "cniVersion": "1.1.0"}));
    let result = second.with("prevResult", result).add(&pod.sandbox);
    first
        .clone()
        .with("cniVersion", "1.1.0")
        .check(&pod.sandbox, &result)
        .ok();
    let last = pod.tuning(&json!({"mtu": 1300, "mac": MAC}));
    last.del(&pod.sandbox);
    first.del(&pod.sandbox);
    assert_eq!(pod.link(), before);
}

#[test]
fn interfaces_of_one_container_have_records_of_their_own() {
    let host = Host::new();
    let pod = Pod::new(&host, "a");
    let other = host.bridge().with("name", "other").with("bridge", "br2");
    let ranges = json!([[{"subnet": "10.2.0.0/24"}]]);
    other
        .with("ipam.ranges", ranges)
        .on("ADD", &pod.sandbox)
        .ifname("net1.5")
        .ok();
    let network = pod.tuning(&json!({"mtu": 1400}));
    network.add(&pod.sandbox);
    let second = network.clone().with("name", "other");
    second.on("ADD", &pod.sandbox).ifname("net1.5").ok();
    assert!(Path::new("/run/cni/tuning/a_net1.5.json").exists());
    network.del(&pod.sandbox);
    let mtu = |link: &str| pod.sandbox.link(link)["mtu"].clone();
    assert_eq!((mtu("eth0"), mtu("net1.5")), (json!(1500), json!(1400)));
    second.on("DEL", &pod.sandbox).ifname("net1.5").ok();
    assert_eq!(mtu("net1.5"), 1500);
}

#[test]
fn gc_removes_records_of_this_network_that_are_not_listed() {
    let host = Host::new();
    let pods = ["a", "b", "c"].map(|name| Pod::new(&host, name));
    for (pod, network) in pods.iter().zip(["pods", "pods", "other"]) {
        pod.tuning(&json!({"mtu": 1400}))
            .with("name", network)
            .add(&pod.sandbox);
    }
    let of_reference = Pod::new(&host, "d");
    let network = of_reference.tuning(&json!({"mtu": 1400}));
    network.by_reference().add(&of_reference.sandbox);
    fs::write("/run/cni/tuning/readme", "not a record").unwrap();
    let outcome = network.gc(&[&pods[1].sandbox]).run();
    outcome.ok();
    assert!(outcome.stderr.contains("cni:pods/a/eth0"), "{outcome:?}");
    let exist = pods.each_ref().map(|pod| pod.record().exists());
    assert_eq!(exist, [false, true, true]);
    assert!(of_reference.record().exists());
    network.with("dataDir", "/run/none").gc(&[]).ok();
}
