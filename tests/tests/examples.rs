//! Every file of conf-examples/ works as an example.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};
use tests::traffic::tcp;
use tests::{Checkpoint, Example, Host, Invocation, Place as _};

#[test]
fn bridge_gives_ipv4_and_ports_of_the_host() {
    let host = Host::new();
    let pods = Example::list(&host, "bridge.conflist").pods();
    pods.reach_each_other(1).forward_ports().detach();
}

#[test]
fn dual_stack_gives_addresses_of_both_families() {
    let host = Host::new();
    let pods = Example::list(&host, "dual-stack.conflist").pods();
    pods.reach_each_other(2).detach();
}

#[test]
fn layer_2_carries_addresses_that_containers_bring() {
    let host = Host::new();
    let pods = Example::list(&host, "layer-2.conflist").pods();
    for (pod, number) in [(&pods.a, 1), (&pods.b, 2)] {
        pod.ip(&format!("address add 198.51.100.{number}/24 dev eth0"));
    }
    assert!(pods.a.pings("198.51.100.2"));
    pods.detach();
}

#[test]
fn bandwidth_limits_what_comes_from_elsewhere() {
    let host = Host::new();
    let pods = Example::list(&host, "bandwidth.conflist").pods();
    pods.reach_each_other(1).are_limited(100e6).detach();
}

/// The first pod has two devices of 10 Mbit/s towards it, and the runtime asks for 100 Mbit/s.
#[test]
fn pod_resources_limit_a_pod_to_its_devices() {
    let host = Host::new();
    let example = Example::list(&host, "pod-resources.conflist");
    Checkpoint::new()
        .give("uid-app", "example.org/ingress-10mbit", &["1", "2"])
        .write();
    let [a, b] = ["app", "other"].map(|name| host.sandbox(name));
    let asked = json!({"bandwidth": {"ingressRate": 100_000_000}}).to_string();
    let mut rates = Vec::new();
    for pod in [&a, &b] {
        let add = example.on("add", pod).env("CAP_ARGS", &asked);
        let args = format!("IgnoreUnknown=1;K8S_POD_UID=uid-{}", pod.name());
        let result = add.args(&args).ok();
        let link = result["interfaces"][1]["name"].as_str().unwrap();
        let qdiscs = host.qdiscs(link);
        let limit = qdiscs.iter().find(|it| it["kind"] == "tbf").unwrap();
        rates.push(limit["options"]["rate"].as_u64().unwrap() * 8);
    }
    assert_eq!(rates, [20_000_000, 100_000_000]);
    for pod in [&a, &b] {
        example.on("check", pod).ok();
        example.on("del", pod).ok();
    }
    example
        .pods()
        .reach_each_other(1)
        .are_limited(10e6)
        .detach();
}

#[test]
fn loopback_brings_lo_up() {
    let host = Host::new();
    let a = host.sandbox("a");
    let example = Example::list(&host, "loopback.conflist");
    assert!(!a.pings("127.0.0.1"));
    example.on("add", &a).ok();
    assert!(a.pings("127.0.0.1") && a.pings("::1"));
    example.on("del", &a).ok();
    assert!(!a.pings("127.0.0.1"));
}

#[test]
fn ptp_gives_both_families_and_leaves_as_the_host() {
    let host = Host::new();
    let pods = Example::list(&host, "ptp.conflist").pods();
    pods.reach_each_other(2).leave_as_the_host().detach();
}

/// kindnet masquerades by rules of its own, so its pods keep their addresses here.
#[test]
fn kindnet_gives_network_and_ports() {
    let host = Host::new();
    let pods = Example::list(&host, "kindnet.conflist").pods();
    pods.outside.ip("route add 10.244.0.0/24 via 192.0.2.1");
    pods.reach_each_other(2).forward_ports().reach_themselves();
    let seen = tcp(&pods.a, &pods.outside, "192.0.2.2");
    assert_eq!(seen, Some([10, 244, 0, 3].into()));
    pods.detach();
}

/// The test uses pod CIDRs in flannel's file.
#[test]
fn kubernetes_gives_network_ports_and_limits() {
    let host = Host::new();
    fs::create_dir("/run/flannel").unwrap();
    let subnets = "FLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n";
    fs::write("/run/flannel/subnet.env", subnets).unwrap();
    let pods = Example::list(&host, "kubernetes.conflist").pods();
    assert_eq!(pods.results[0]["ips"][0]["address"], "10.244.1.3/24");
    assert_eq!(pods.results[0]["ips"][1]["address"], "fd00:244:0:1::3/64");
    // As FLANNEL_MTU is with VXLAN.
    assert_eq!(pods.a.link("eth0")["mtu"], 1450);
    pods.reach_each_other(2).leave_as_the_host().forward_ports();
    pods.reach_themselves().are_limited(10e6).detach();
}

/// CRI-O sends STATUS before the first pod and GC at its start.
#[test]
fn cri_o_gives_network_and_limits_and_answers_status_and_gc() {
    let host = Host::new();
    let example = Example::list(&host, "cri-o.conflist");
    example.run("status").ok();
    let pods = example.pods();
    pods.example().run("gc").ok();
    pods.reach_each_other(2).leave_as_the_host();
    pods.are_limited(10e6).detach();
}

/// The test closes the host like Docker, which podman's users often have beside it.
#[test]
fn podman_gives_network_and_ports_although_the_host_drops() {
    let host = Host::new();
    host.run("iptables-nft", &["-P", "FORWARD", "DROP"]);
    let pods = Example::list(&host, "podman.conflist").pods();
    pods.reach_each_other(1).leave_as_the_host();
    pods.forward_ports().reach_themselves().detach();
}

/// The test closes the host like Docker.
#[test]
fn nerdctl_gives_network_and_ports_although_the_host_drops() {
    let host = Host::new();
    host.run("iptables-nft", &["-P", "FORWARD", "DROP"]);
    let pods = Example::list(&host, "nerdctl.conflist").pods();
    pods.reach_each_other(1).leave_as_the_host();
    pods.forward_ports().reach_themselves().detach();
}

#[test]
fn tuning_gives_network_and_ports_and_tunes_the_interface() {
    let host = Host::new();
    let pods = Example::list(&host, "tuning.conflist").pods();
    let link = pods.a.link("eth0");
    assert_eq!((&link["mtu"], &link["txqlen"]), (&1400.into(), &500.into()));
    assert_eq!(pods.a.sysctl("net/core/somaxconn").unwrap(), "512");
    let filter = pods.a.sysctl("net/ipv4/conf/eth0/arp_filter");
    assert_eq!(filter.unwrap(), "1");
    pods.reach_each_other(1).leave_as_the_host();
    pods.forward_ports().reach_themselves().detach();
}

#[test]
fn containerd_gives_a_node_of_one_pod_cidr_network_and_ports() {
    let host = Host::new();
    let file = "containerd.conflist.template";
    let pods = Example::template(&host, file, &["10.244.1.0/24"]).pods();
    assert_eq!(pods.results[0]["ips"][0]["address"], "10.244.1.3/24");
    pods.reach_each_other(1).leave_as_the_host();
    pods.forward_ports().reach_themselves().detach();
}

#[test]
fn kubenet_gives_network_masquerading_ports_and_limits() {
    let host = Host::new();
    let (file, cidrs) = (
        "kubenet.conflist.template",
        ["10.244.1.0/24", "fd00:244:1::/64"],
    );
    let pods = Example::template(&host, file, &cidrs).pods();
    assert_eq!(pods.results[0]["ips"][0]["address"], "10.244.1.3/24");
    assert_eq!(pods.results[0]["ips"][1]["address"], "fd00:244:1::3/64");
    pods.reach_each_other(2).leave_as_the_host();
    pods.forward_ports().reach_themselves();
    pods.outside.ip("address add 10.9.9.9/32 dev lo");
    pods.outside.ip("route add 10.244.1.0/24 via 192.0.2.1");
    host.ip("route add 10.9.9.9/32 via 192.0.2.2");
    let seen = tcp(&pods.a, &pods.outside, "10.9.9.9");
    assert_eq!(seen, Some([10, 244, 1, 3].into()), "within the cluster");
    host.ip("route delete 10.9.9.9/32");
    pods.are_limited(10e6).detach();
}

/// The test checks the command only. systemd's handling of the unit was observed under systemd.
#[test]
fn the_unit_runs_a_command_that_there_is() {
    let unit = Example::directory().join("systemd/cni-reload.service");
    let unit = fs::read_to_string(unit).unwrap();
    let lines = unit.lines().filter_map(|line| {
        let line = line
            .strip_prefix("ExecStart=-")
            .or(line.strip_prefix("ExecReload="));
        line?.strip_prefix("/opt/cni/bin/cnitool ")
    });
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 2, "{unit}");
    let host = Host::new();
    for line in lines {
        let tool = host.plugin("cnitool");
        line.split(' ').fold(tool, Invocation::argument).ok();
    }
}

/// Else a bridge that stays after the last DEL of one network breaks another network.
#[test]
fn no_two_examples_share_a_name_a_bridge_or_an_address() {
    let all = Example::networks();
    assert!(all.len() > 10, "{all:?}");
    for (index, (file, network)) in all.iter().enumerate() {
        for (other_file, other) in &all[..index] {
            let both = format!("{file} and {other_file}");
            assert_ne!(network["name"], other["name"], "{both}");
            let bridge = bridge(network);
            assert!(bridge.is_none() || bridge != self::bridge(other), "{both}");
            let others = subnets(other);
            for subnet in subnets(network) {
                assert!(!others.iter().any(|it| overlap(subnet, it)), "{both}");
            }
        }
    }
}

#[test]
fn only_examples_of_a_runtime_use_its_defaults() {
    for (file, network) in Example::networks() {
        let stem = file.split('.').next().unwrap();
        for (owner, bridges, taken) in DEFAULTS {
            if owner == stem {
                continue;
            }
            let bridge = bridge(&network);
            assert!(!bridge.is_some_and(|it| bridges.contains(&it)), "{file}");
            for subnet in subnets(&network) {
                let is_taken = taken.iter().any(|it| overlap(subnet, it));
                assert!(!is_taken || stem == "kindnet", "{file}: {subnet}");
            }
        }
    }
}

/// Bridges and subnets of networks that runtimes make on their own: podman's default network and
/// the pools of its others (containers.conf(5)), nerdctl's and Docker's. kind has its pods in one of
/// the pools.
const DEFAULTS: [(&str, &[&str], &[&str]); 3] = [
    (
        "podman",
        &["cni-podman0", "podman0"],
        &[
            "10.88.0.0/15",
            "10.90.0.0/15",
            "10.92.0.0/14",
            "10.96.0.0/11",
            "10.128.0.0/9",
        ],
    ),
    ("nerdctl", &["nerdctl0"], &["10.4.0.0/16"]),
    ("docker", &["docker0"], &["172.17.0.0/16"]),
];

fn bridge(network: &Value) -> Option<&str> {
    network["plugins"][0]["bridge"].as_str()
}

/// Returns the subnets that the first plugin's IPAM plugin leases from.
fn subnets(network: &Value) -> Vec<&str> {
    let ipam = &network["plugins"][0]["ipam"];
    let ranges = ipam["ranges"].as_array().into_iter().flatten();
    let ranges = ranges.flat_map(|set| set.as_array().unwrap());
    let subnets = ranges.chain([ipam]).map(|it| &it["subnet"]);
    let subnets = subnets.filter_map(Value::as_str);
    subnets.filter(|it| it.contains('/')).collect()
}

/// Returns whether two subnets have an address in common.
fn overlap(one: &str, other: &str) -> bool {
    let [(one, length), (other, other_length)] = [one, other].map(|cidr| {
        let (address, length) = cidr.split_once('/').unwrap();
        let length: u32 = length.parse().unwrap();
        match address.parse().unwrap() {
            IpAddr::V4(it) => (it.to_ipv6_mapped().to_bits(), length + 96),
            IpAddr::V6(it) => (it.to_bits(), length),
        }
    });
    (one ^ other).leading_zeros() >= length.min(other_length)
}

#[test]
fn every_example_is_documented_and_run_by_a_test() {
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let all = |directory: &Path| -> String {
        let files = files(directory);
        files.iter().map(|it| read(&directory.join(it))).collect()
    };
    let tests = all(&package.join("tests"));
    let runtimes = all(&package.join("../scripts/e2e"));
    let directory = Example::directory();
    let told = read(&directory.join("README.md"));
    let mut examples = files(&directory);
    examples.retain(|file| file != "README.md");
    assert!(!examples.is_empty());
    for file in examples {
        let is_run = tests.contains(&format!("{file}\""))
            || runtimes.contains(&format!("conf-examples/{file}"));
        assert!(is_run, "no test runs {file}");
        assert!(told.contains(&format!("]({file})")), "no word of {file}");
    }
}

/// Returns the files below `directory`, by relative path.
fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.flat_map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !path.is_dir() {
            return vec![name];
        }
        let below = files(&path);
        below.iter().map(|it| format!("{name}/{it}")).collect()
    });
    paths.collect()
}
