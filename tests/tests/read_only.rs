//! bridge and ptp on a host with a read-only `/proc/sys`, as in a nested container.

use serde_json::{Value, json};
use tests::{Host, Network, Place as _};

fn ptp_v4(host: &Host) -> Network<'_> {
    let network = host
        .ptp()
        .with("ipam.routes", json!([{"dst": "0.0.0.0/0"}]));
    network.with("ipam.ranges", json!([[{"subnet": "10.1.0.0/24"}]]))
}

#[test]
fn ipv4_is_attached_and_what_stays_unprotected_is_reported() {
    let host = Host::new();
    host.set_sysctl("net/ipv4/ip_forward", "1");
    let a = host.sandbox("a");
    host.read_only("/proc/sys");
    for (network, sysctl) in [
        (host.bridge_v4(), "cni0.accept_ra"),
        (ptp_v4(&host), "disable_ipv6"),
    ] {
        let outcome = network.on("ADD", &a).run();
        let result = outcome.ok();
        let is_told = |words: [&str; 3]| {
            let mut lines = outcome.stderr.lines();
            lines.any(|line| words.iter().all(|word| line.contains(word)))
        };
        let of_host = "the host's IPv6 routes by router advertisements";
        assert!(is_told([of_host, sysctl, "Read-only"]), "{outcome:?}");
        for setting in ["eth0.accept_ra", "eth0.autoconf"] {
            let of_container = "this container's IPv6 routes";
            assert!(is_told([of_container, setting, "Read-only"]), "{outcome:?}");
        }
        assert!(a.pings("10.1.0.1"));
        assert_eq!(network.check(&a, &result).ok(), Value::Null);
        network.del(&a);
        if host.has_link("cni0") {
            host.ip("link delete cni0");
        }
    }
}

#[test]
fn ipv6_gateways_need_their_protection() {
    let host = Host::new();
    for sysctl in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        host.set_sysctl(sysctl, "1");
    }
    let a = host.sandbox("a");
    host.read_only("/proc/sys");
    for network in [host.bridge(), host.ptp()] {
        let refusal = network.on("ADD", &a).error();
        refusal.expect(100, &["net.ipv6.conf.", ".accept_ra", "Read-only"]);
        assert!(!a.has_link("eth0") && host.leases("pods").is_empty());
    }
}

/// Only protections against router advertisements may be missing.
#[test]
fn other_sysctls_stay_necessary() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.read_only("/proc/sys");
    for network in [host.bridge_v4(), ptp_v4(&host)] {
        let refusal = network.on("ADD", &a).error();
        refusal.expect(100, &["net.ipv4.ip_forward", "Read-only"]);
        assert!(!a.has_link("eth0"));
    }
}

#[test]
fn doctor_reports_what_stays_unprotected() {
    let host = Host::new();
    let tool = host.pods();
    let a = host.sandbox("a");
    tool.add("pods", &a, &[]);
    host.set_sysctl("net/ipv6/conf/cni1/accept_ra", "1");
    let findings = tool.doctor();
    findings.expect("warning", "sysctl", &["net.ipv6.conf.cni1.accept_ra is 1"]);
    for fix in findings.fixes("sysctl") {
        tool.obey(&fix);
    }
    assert_eq!(host.sysctl("net/ipv6/conf/cni1/accept_ra").unwrap(), "0");
    host.read_only("/proc/sys");
    tool.doctor()
        .expect("warning", "sysctl", &["/proc/sys is read-only"]);
}
