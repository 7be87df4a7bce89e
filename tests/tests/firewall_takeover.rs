//! firewall: an address that several attachments have, as while a pod is recreated.

use std::fs;

use tests::faults::strace;
use tests::{Host, Invocation, Network, Place as _, Sandbox};

/// Records of attachments.
fn records() -> usize {
    fs::read_dir("/run/cni/firewall").unwrap().count()
}

fn closed(host: &Host) {
    let rules = "for p in iptables-nft ip6tables-nft; do $p -P FORWARD DROP; done";
    host.sh(rules);
}

/// Attaches the pods, and then loses all rules.
fn added_and_flushed(host: &Host, firewall: &Network<'_>, pods: [&Sandbox; 2]) {
    closed(host);
    for pod in pods {
        firewall.on("ADD", pod).ok();
    }
    host.run("nft", &["flush", "ruleset"]);
    closed(host);
}

/// The attachment `b` has the addresses of `a`, whose traffic shows whether the addresses pass.
#[test]
fn permission_lasts_until_the_last_attachment_with_the_address_ends() {
    for is_newer_first in [true, false] {
        let host = Host::new();
        closed(&host);
        let fence = host.fence();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let firewall = fence.join(&a, &[]).with("backend", "iptables");
        for pod in [&a, &b] {
            firewall.on("ADD", pod).ok();
        }
        assert_eq!(fence.opens(&a), [true; 2]);
        for pod in [&a, &b] {
            firewall.check(pod, &firewall.config()["prevResult"]).ok();
        }
        let [first, last] = if is_newer_first { [&b, &a] } else { [&a, &b] };
        firewall.del(first);
        assert_eq!(fence.opens(&a), [true; 2]);
        firewall.check(last, &firewall.config()["prevResult"]).ok();
        firewall.del(last);
        assert_eq!(fence.opens(&a), [false; 2]);
        assert_eq!(records(), 0);
        let left = host.run("nft", &["list", "table", "inet", "cni-firewall"]);
        assert!(!left.contains("cni:pods"), "{left}");
    }
}

#[test]
fn reload_and_gc_know_the_earlier_attachment() {
    let host = Host::new();
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let firewall = fence.join(&a, &[]).with("backend", "iptables");
    let result = &firewall.config()["prevResult"];
    added_and_flushed(&host, &firewall, [&a, &b]);
    for pod in [&a, &b] {
        firewall.on("RELOAD", pod).ok();
    }
    assert_eq!(fence.opens(&a), [true; 2]);
    firewall.check(&b, result).ok();
    firewall.gc(&[&a]).ok();
    firewall.check(&a, result).ok();
    assert_eq!(fence.opens(&a), [true; 2]);
}

#[test]
fn repeated_add_of_the_newer_attachment_keeps_the_earlier_one_in_its_record() {
    let host = Host::new();
    closed(&host);
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let firewall = fence.join(&a, &[]).with("backend", "iptables");
    for pod in [&a, &b, &b, &a, &b] {
        firewall.on("ADD", pod).ok();
    }
    firewall.del(&b);
    assert_eq!(fence.opens(&a), [true; 2]);
}

#[test]
fn del_after_a_flush_gives_nothing_back_and_succeeds() {
    let host = Host::new();
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let firewall = fence.join(&a, &[]).with("backend", "iptables");
    added_and_flushed(&host, &firewall, [&a, &b]);
    firewall.del(&b);
    assert_eq!(records(), 1);
    firewall.on("RELOAD", &a).ok();
    assert_eq!(fence.opens(&a), [true; 2]);
}

/// The removal of `b`, during which all `calls` fail.
fn faulty(host: &Host, removal: Invocation, calls: &str) -> Invocation {
    let mut words = strace(&host.dir().join("trace"));
    let fault = format!("-e trace={calls} -e inject={calls}:error=ENOMEM");
    words.extend(fault.split(' ').map(str::to_owned));
    removal.under(&words)
}

#[test]
fn removal_completes_without_renaming_the_record_or_fails_until_the_next_one() {
    for verb in ["DEL", "GC"] {
        let host = Host::new();
        closed(&host);
        let fence = host.fence();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let firewall = fence.join(&a, &[]).with("backend", "iptables");
        firewall.on("ADD", &a).ok();
        let removal = || match verb {
            "DEL" => firewall.on("DEL", &b),
            _ => firewall.gc(&[&a]),
        };
        firewall.on("ADD", &b).ok();
        faulty(&host, removal(), "/^rename").ok();
        assert_eq!((fence.opens(&a), records()), ([true; 2], 1));
        firewall.on("ADD", &b).ok();
        let refused = faulty(&host, removal(), "/^(rename|unlink)").error();
        refused.expect(100, &["remove /run/cni/firewall/cni:pods:b:eth0"]);
        assert_eq!(records(), 2);
        removal().ok();
        assert_eq!((fence.opens(&a), records()), ([true; 2], 1));
    }
}
