//! firewall: chains of legacy iptables that drop, which only its own program reaches, and versions of
//! iptables-nft that do not read all rules.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::{Host, Place as _, eventually};

const CLOSED: &str = "for p in iptables-legacy ip6tables-legacy; do $p -P FORWARD DROP; done";

fn rules(host: &Host) -> String {
    host.sh("iptables-legacy -S FORWARD; iptables-legacy -S CNI-FORWARD")
}

#[test]
fn pods_open_connections_although_legacy_iptables_drops() {
    let host = Host::new();
    host.sh(CLOSED);
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let firewall = fence.join(&a, &["8080:80"]);
    assert_eq!(fence.opens(&a), [false; 2]);
    firewall.add(&a);
    assert_eq!(fence.opens(&a), [true; 2]);
    assert!(!fence.is_opened(&a, "10.1.0.2"));
    let before = rules(&host);
    assert_eq!(before.matches("CNI-ADMIN").count(), 1, "{before}");
    // The program runs once per node: a second pod needs none.
    let second = fence.join(&b, &[]);
    second.on("ADD", &b).env("PATH", host.dir()).ok();
    assert_eq!(fence.opens(&b), [true; 2]);
    assert_eq!(rules(&host), before);
    firewall.del(&a);
    assert_eq!(fence.opens(&a), [false; 2]);
}

#[test]
fn reload_restores_rules_in_legacy_iptables() {
    let host = Host::new();
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = fence.add(&a, &[]);
    // No table of legacy iptables existed before.
    host.sh(CLOSED);
    assert_eq!(fence.opens(&a), [false; 2]);
    firewall.on("RELOAD", &a).ok();
    assert_eq!(fence.opens(&a), [true; 2]);
    let before = rules(&host);
    host.sh("iptables-legacy -F FORWARD");
    firewall.on("RELOAD", &a).ok();
    assert_eq!(fence.opens(&a), [true; 2]);
    assert_eq!(rules(&host), before);
}

/// nftables.service loads a saved ruleset at boot, which has the plugin's table.
#[test]
fn a_table_of_an_earlier_boot_does_not_hide_missing_rules_in_legacy_iptables() {
    let host = Host::new();
    host.sh(CLOSED);
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = fence.add(&a, &[]);
    let before = rules(&host);
    host.sh("for p in iptables-legacy ip6tables-legacy; do $p -F FORWARD; $p -F CNI-FORWARD; done");
    host.reboot("6f0b4c0e-8a51-4a3c-b7d0-2f7f3f1f5a10");
    assert_eq!(fence.opens(&a), [false; 2]);
    firewall.add(&a);
    assert_eq!(fence.opens(&a), [true; 2]);
    assert_eq!(rules(&host), before);
}

/// iptables before 1.8.8 saves and restores a comparison by `nf_tables` without it.
#[test]
fn rule_has_the_form_that_an_old_iptables_reads() {
    let host = Host::new();
    host.sh("for p in iptables-nft ip6tables-nft; do $p -P FORWARD DROP; done");
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = fence.join(&a, &[]);
    host.script("iptables-nft", "echo 'iptables v1.8.7 (nf_tables)'");
    let old = host.dir().join("plugins");
    firewall.on("ADD", &a).env("PATH", old).ok();
    assert_eq!(fence.opens(&a), [true; 2]);
    let result = &firewall.config()["prevResult"];
    assert_eq!(firewall.check(&a, result).ok(), Value::Null);
    for family in ["ip", "ip6"] {
        let list = ["--debug", "netlink", "list", "table", family, "filter"];
        let table = host.run("nft", &list);
        assert!(table.contains("[ match name mark rev 1 ]"), "{table}");
    }
}

#[test]
fn rule_that_lost_its_condition_is_reported_and_deleted() {
    let host = Host::new();
    host.sh("iptables-nft -P FORWARD DROP");
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let firewall = fence.add(&a, &[]);
    fence.join(&b, &[]);
    let condition = "-m mark --mark 0x1000/0x1000 ";
    host.sh(&format!(
        "cd {}; iptables-nft-save | sed 's|{condition}||' > saved; iptables-nft-restore < saved",
        host.dir().display()
    ));
    assert_eq!(
        fence.opens(&b),
        [true, true],
        "the host forwards all packets"
    );
    let result = &firewall.config()["prevResult"];
    let refusal = firewall.check(&a, result).error();
    refusal.expect(100, &["CNI-FORWARD", "accepts all packets"]);
    firewall.on("RELOAD", &a).ok();
    assert_eq!(fence.opens(&b), [false, true], "IPv4 is closed again");
    assert_eq!(fence.opens(&a), [true; 2]);
    firewall.check(&a, result).ok();
}

#[test]
fn missing_program_is_reported() {
    let host = Host::new();
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = fence.join(&a, &[]);
    let empty = host.dir().join("empty");
    fs::create_dir(&empty).unwrap();
    let status = firewall.clone().with("cniVersion", "1.1.0").call("STATUS");
    let status = status.env("PATH", &empty);
    assert_eq!(status.clone().run().stderr, "");
    host.sh(CLOSED);
    for call in [status, firewall.on("ADD", &a).env("PATH", &empty)] {
        let outcome = call.run();
        outcome.ok();
        let said = outcome.stderr.contains("start iptables-legacy");
        assert!(said, "{outcome:?}");
    }
    firewall.on("ADD", &a).ok();
    assert_eq!(fence.opens(&a), [true; 2]);
}

#[test]
fn programs_that_hang_or_flood_do_not_hold_add() {
    for (program, script, reason) in [
        ("iptables-nft", "sleep 1000 & wait", "did not end within 3s"),
        ("iptables-nft", "exec yes", "printed more than 64 MiB"),
        (
            "iptables-legacy",
            "exec yes >&2",
            "printed more than 64 MiB",
        ),
    ] {
        let host = Host::new();
        host.sh(CLOSED);
        let a = host.sandbox("a");
        let firewall = host.fence().join(&a, &[]);
        host.script(program, script);
        let path = format!("{}/plugins:/usr/sbin:/usr/bin:/bin", host.dir().display());
        let start = Instant::now();
        let outcome = firewall.on("ADD", &a).env("PATH", path).run();
        outcome.ok();
        let said = outcome.stderr.contains(program) && outcome.stderr.contains(reason);
        assert!(said, "{outcome:?}");
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
        let is_none = eventually(|| host.processes().is_empty());
        assert!(is_none, "{:?}", host.processes());
    }
}

/// A run takes a fifth of it.
const PATIENCE: Duration = Duration::from_secs(20);
