//! tuning: the sources of its settings, and rejected configurations.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Refusal, Sandbox};

/// Returns a sandbox on the bridge, and a network without settings behind it.
fn attached(host: &Host) -> (Sandbox, Network<'_>) {
    let a = host.sandbox("a");
    let result = host.bridge().add(&a);
    let network = host.bandwidth().with("type", "tuning");
    (a, network.with("prevResult", result))
}

fn mac(number: u8) -> String {
    format!("02:00:00:00:00:{number:02}")
}

/// Runs ADD, which the reference refuses, too, and checks that it changes nothing.
#[track_caller]
fn refused_by_both(network: &Network<'_>, (a, args): (&Sandbox, &str)) -> Refusal {
    network.by_reference().on("ADD", a).args(args).error();
    refused((network, a), args)
}

#[track_caller]
fn refused((network, a): (&Network<'_>, &Sandbox), args: &str) -> Refusal {
    let state = || (a.ip("link show"), a.sysctl("net/core/somaxconn"));
    let before = state();
    let refusal = network.on("ADD", a).args(args).error();
    assert_eq!(state(), before);
    refusal
}

#[test]
fn the_last_source_of_a_mac_wins_as_in_the_reference() {
    let host = Host::new();
    let (a, network) = attached(&host);
    let key = network.clone().with("mac", mac(1));
    let runtime = key.clone().with("runtimeConfig.mac", mac(3));
    let conventional = runtime.clone().with("args.cni.mac", mac(4));
    let argument = format!("MAC={}", mac(2));
    for (network, args, number) in [
        (&key, "", 1),
        (&key, argument.as_str(), 2),
        (&key, "MAC=;IgnoreUnknown=1;X=1", 1),
        (&runtime, "", 3),
        (&runtime, &argument, 3),
        (&conventional, &argument, 4),
    ] {
        for network in [network.clone(), network.by_reference()] {
            network.on("ADD", &a).args(args).ok();
            assert_eq!(a.mac("eth0"), mac(number), "{args}");
            network.on("DEL", &a).args(args).ok();
        }
    }
    let before = a.mac("eth0");
    let none = conventional.with("args.cni.mac", "");
    none.on("ADD", &a).args(&argument).ok();
    assert_eq!(a.mac("eth0"), before, "an empty text stands for no MAC");
    key.on("ADD", &a).args("K8S_POD_NAME=web;IP=10.1.0.2").ok();
}

#[test]
fn conventional_arguments_take_precedence_setting_by_setting() {
    let host = Host::new();
    let (a, network) = attached(&host);
    let keys = json!({"mtu": 1400, "promisc": true, "allmulti": false, "txQLen": 500,
        "sysctl": {"net.core.somaxconn": "512", "net.ipv4.ip_forward": "1"}});
    let mut network = network.with(
        "args.cni",
        json!({"MTU": 1300, "promisc": false, "allmulti": true,
        "txQLen": 400, "sysctl": {"net.core.somaxconn": "514", "net.ipv4.ip_default_ttl": "7"}}),
    );
    for (key, value) in keys.as_object().unwrap() {
        network = network.with(key, value.clone());
    }
    network.add(&a);
    let link = a.link("eth0");
    assert_eq!((&link["mtu"], &link["txqlen"]), (&json!(1300), &json!(400)));
    let flags = link["flags"].as_array().unwrap();
    assert!(flags.contains(&"ALLMULTI".into()) && !flags.contains(&"PROMISC".into()));
    for (key, value) in [
        ("core/somaxconn", "514"),
        ("ipv4/ip_forward", "1"),
        ("ipv4/ip_default_ttl", "7"),
    ] {
        assert_eq!(a.sysctl(&format!("net/{key}")).unwrap(), value);
    }
    let only_args = host.bandwidth().with("type", "tuning");
    let only_args = only_args.with("prevResult", network.config()["prevResult"].clone());
    let only_args = only_args.with("args.cni.sysctl", json!({"net.core.somaxconn": "515"}));
    only_args.add(&a);
    assert_eq!(a.sysctl("net/core/somaxconn").unwrap(), "515");
    let spelt_otherwise = only_args.with("sysctl", json!({"net/core/somaxconn": "512"}));
    spelt_otherwise.add(&a);
    assert_eq!(a.sysctl("net/core/somaxconn").unwrap(), "515");
    let result = &network.config()["prevResult"];
    assert_eq!(spelt_otherwise.check(&a, result).ok(), Value::Null);
}

#[test]
fn keys_match_in_any_case_and_names_of_sysctls_do_not() {
    let host = Host::new();
    let (a, network) = attached(&host);
    let network = network.with("MTU", 1400).with("TXQLEN", 500);
    network
        .clone()
        .with("SysCtl", json!({"net.core.somaxconn": "512"}))
        .add(&a);
    let link = a.link("eth0");
    assert_eq!((&link["mtu"], &link["txqlen"]), (&json!(1400), &json!(500)));
    assert_eq!(a.sysctl("net/core/somaxconn").unwrap(), "512");
    let upper = network.with("sysctl", json!({"NET.core.somaxconn": "600"}));
    upper
        .on("ADD", &a)
        .error()
        .expect(7, &["NET.core.somaxconn"]);
}

#[test]
fn code_7_for_a_sysctl_that_is_not_below_net() {
    let host = Host::new();
    let (a, network) = attached(&host);
    for name in [
        "kernel.hostname",
        "vm.swappiness",
        "net",
        "net.",
        "",
        "IFNAME.net.x",
    ] {
        let network = network.clone().with("sysctl", json!({ name: "1" }));
        refused_by_both(&network, (&a, "")).expect(7, &[&format!("sysctl.{name}"), "net"]);
    }
    let dots = network
        .clone()
        .with("sysctl", json!({"../net..core/somaxconn": "512"}));
    for network in [dots.clone(), dots.by_reference()] {
        network.add(&a);
    }
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for name in [
        "net/../kernel/hostname",
        "net.../kernel.hostname",
        "net/..//../kernel/hostname",
    ] {
        let network = network.clone().with("sysctl", json!({ name: "hacked" }));
        refused((&network, &a), "").expect(100, &["sysctl"]);
    }
    assert_eq!(
        fs::read_to_string("/proc/sys/kernel/hostname").unwrap(),
        hostname
    );
}

#[test]
fn code_7_for_a_sysctl_that_is_there_twice() {
    let host = Host::new();
    let (a, network) = attached(&host);
    let network = network.with("sysctl", json!({"net.core.somaxconn": "512"}));
    let text = network.config().to_string();
    let once = r#""net.core.somaxconn":"512""#;
    let twice = text.replace(once, &format!("{once},{once}"));
    assert_ne!(text, twice);
    for verb in ["ADD", "CHECK"] {
        let call = network.on(verb, &a).stdin(twice.clone());
        call.error().expect(7, &["net.core.somaxconn", "twice"]);
    }
    network.on("DEL", &a).stdin(twice).ok();
    let sysctls = json!({"net.core.somaxconn": "512", "net/core//somaxconn": "513"});
    let refused = network.with("sysctl", sysctls).on("ADD", &a).error();
    refused.expect(7, &["net/core//somaxconn", "twice"]);
}

#[test]
fn values_of_wrong_types_and_without_a_meaning_are_refused() {
    let host = Host::new();
    let (a, network) = attached(&host);
    for (key, value) in [
        ("mac", json!("02:00:00:00:00")),
        ("mac", json!("x")),
        ("mac", json!(1)),
        ("mac", json!("01:00:5e:00:00:01")),
        ("runtimeConfig.mac", json!("00:00:00:00:00:00")),
        ("args.cni.mac", json!("02-00:00-00:00-01")),
        ("mtu", json!("1400")),
        ("promisc", json!(1)),
        ("allmulti", json!("on")),
        ("sysctl", json!(["net.core.somaxconn=1"])),
        ("sysctl.net", json!(1)),
        ("dataDir", json!(1)),
    ] {
        let network = network.clone().with(key, value);
        refused_by_both(&network, (&a, "")).expect(7, &[key.split('.').next_back().unwrap()]);
    }
    for (key, value) in [
        ("mtu", json!(-1)),
        ("txQLen", json!("x")),
        ("dataDir", json!("tuning")),
    ] {
        let network = network.clone().with(key, value);
        refused((&network, &a), "").expect(7, &[key]);
    }
    for (args, code) in [("MAC=x", 7), ("X=1", 4), ("MAC", 4)] {
        refused_by_both(&network, (&a, args)).expect(code, &[]);
    }
    let first = network.without("prevResult");
    refused_by_both(&first, (&a, "")).expect(7, &["prevResult"]);
}

/// Replaces /etc by a directory with this allowlist.
fn allow(host: &Host, list: &str) {
    host.hide("/etc");
    fs::create_dir_all("/etc/cni/tuning").unwrap();
    fs::write("/etc/cni/tuning/allowlist.conf", list).unwrap();
}

fn status(network: &Network<'_>) -> tests::Invocation {
    network
        .clone()
        .with("cniVersion", "1.1.0")
        .without("prevResult")
        .call("STATUS")
}

#[test]
fn only_sysctls_of_the_allowlist_are_set() {
    let host = Host::new();
    let (a, network) = attached(&host);
    allow(
        &host,
        "\n  ^net\\.core\\.somaxconn$  \r\n\n^net.ipv4.conf.IFNAME.[a-z_]*$\nip_default\n",
    );
    for name in [
        "net.core.somaxconn",
        "net.ipv4.conf.IFNAME.arp_filter",
        "net.ipv4.ip_default_ttl",
    ] {
        let network = network.clone().with("sysctl", json!({ name: "1" }));
        network.add(&a);
        status(&network).ok();
    }
    for name in [
        "net.core.somaxconnx",
        "net/core/somaxconn",
        "net.ipv4.conf.eth0.arp_filter",
        "net.ipv4.ip_forward",
    ] {
        let by_key = network.clone().with("sysctl", json!({ name: "1" }));
        let by_argument = network
            .clone()
            .with("args.cni.sysctl", json!({ name: "1" }));
        for network in [by_key, by_argument] {
            let words = [&format!("sysctl.{name}"), "/etc/cni/tuning/allowlist.conf"];
            refused((&network, &a), "").expect(7, &words);
            status(&network).error().expect(7, &words);
            network.del(&a);
        }
    }
    network.with("mtu", 1400).add(&a);
}

#[test]
fn empty_allowlist_allows_nothing_and_a_broken_one_is_named() {
    let host = Host::new();
    let (a, network) = attached(&host);
    let network = network.with("sysctl", json!({"net.core.somaxconn": "512"}));
    allow(&host, "\n");
    refused((&network, &a), "").expect(7, &["net.core.somaxconn"]);
    for broken in ["net.(", "\\pL", "[z-a]"] {
        let list = format!("somaxconn\n{broken}\n");
        fs::write("/etc/cni/tuning/allowlist.conf", list).unwrap();
        refused((&network, &a), "").expect(2, &["allowlist.conf", broken.trim_start_matches('\\')]);
        status(&network).error().expect(2, &["allowlist.conf"]);
        let without = network.clone().with("sysctl", json!({})).with("mtu", 1400);
        for network in [without.by_reference(), without] {
            network.add(&a);
        }
    }
    fs::write(
        "/etc/cni/tuning/allowlist.conf",
        "(?i)^NET\\.core\\.[[:alpha:]]+$",
    )
    .unwrap();
    network.add(&a);
    fs::remove_file("/etc/cni/tuning/allowlist.conf").unwrap();
    network.add(&a);
    fs::create_dir("/etc/cni/tuning/allowlist.conf").unwrap();
    refused((&network, &a), "").expect(100, &["allowlist.conf"]);
    let _: Value = network.on("DEL", &a).ok();
}

#[test]
fn an_allowlist_that_cannot_be_read_allows_nothing() {
    let host = Host::new();
    let (a, network) = attached(&host);
    let network = network.with("sysctl", json!({"net.core.somaxconn": "512"}));
    allow(&host, "");
    let list = Path::new("/etc/cni/tuning/allowlist.conf");
    let make = |words: &[&str]| {
        fs::remove_file(list).unwrap();
        tests::run(words[0], &[&words[1..], &[list.to_str().unwrap()]].concat());
    };
    for words in [
        &["ln", "-s", "/nowhere"][..],
        &["ln", "-s", "/dev/zero"],
        &["mkfifo"],
    ] {
        make(words);
        let refused = network.on("ADD", &a).error();
        refused.expect(100, &["allowlist.conf"]);
    }
    fs::remove_dir_all("/etc/cni").unwrap();
    network.add(&a);
    std::os::unix::fs::symlink("/nowhere", "/etc/cni").unwrap();
    network
        .on("ADD", &a)
        .error()
        .expect(100, &["allowlist.conf"]);
}

/// The kernel answers EIO to readers of the parameter before its first write.
#[test]
fn a_sysctl_without_a_value_is_set() {
    let host = Host::new();
    let (a, network) = attached(&host);
    let secret = "2001:db8:0:0:0:0:0:1";
    let name = "net.ipv6.conf.IFNAME.stable_secret";
    let network = network.with("sysctl", json!({ name: secret }));
    network.add(&a);
    let found = a.run("cat", &["/proc/sys/net/ipv6/conf/eth0/stable_secret"]);
    assert_eq!(found.trim(), "2001:0db8:0000:0000:0000:0000:0000:0001");
}
