//! firewall: traffic of pods passes firewalld, the real one on a D-Bus of the test's own.

use std::fs;
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::faults::strace;
use tests::fence::Fence;
use tests::traffic::{tcp, tcp_by_port};
use tests::{Firewalld, Host, Invocation, Network, Place as _, Sandbox, at_once};

/// Returns firewall behind the bridge for a sandbox.
fn join<'h>(fence: &Fence<'h>, pod: &Sandbox) -> Network<'h> {
    fence.join(pod, &["8080:80"])
}

fn run(network: &Network<'_>, verb: &str, pod: &Sandbox) -> Invocation {
    network.on(verb, pod).on_the_bus()
}

/// Returns the path of the record of pod a.
fn record(prefix: &str) -> String {
    format!("/run/cni/firewall/{prefix}cni:pods:a:eth0")
}

#[test]
fn pods_open_connections_as_sources_of_a_zone() {
    for backend in ["", "firewalld"] {
        let host = Host::new();
        let firewalld = Firewalld::start(&host);
        let fence = host.fence();
        let a = host.sandbox("a");
        let firewall = join(&fence, &a).with("backend", backend);
        assert_eq!(fence.opens(&a), [false; 2]);
        assert_eq!(
            run(&firewall, "ADD", &a).ok(),
            firewall.config()["prevResult"]
        );
        assert_eq!(fence.opens(&a), [true; 2]);
        assert!(!fence.is_opened(&a, "10.1.0.2"));
        assert!(tcp_by_port(&fence.outside, "192.0.2.1:8080", (&a, 80)).is_some());
        assert_eq!(firewalld.sources("trusted").split(' ').count(), 2);
        run(&firewall, "CHECK", &a).ok();
        // firewalld forgets sources of its runtime.
        firewalld.command("--reload");
        assert_eq!(firewalld.sources("trusted"), "");
        let missing = ["zone trusted of firewalld lacks 10.1.0."];
        run(&firewall, "CHECK", &a).error().expect(100, &missing);
        run(&firewall, "RELOAD", &a).ok();
        run(&firewall, "CHECK", &a).ok();
        assert_eq!(fence.opens(&a), [true; 2]);
        let forgotten = fence.firewall().on("DEL", &a).without("CNI_NETNS");
        forgotten.on_the_bus().ok();
        assert_eq!(firewalld.sources("trusted"), "");
        assert_eq!(fence.opens(&a), [false; 2]);
    }
}

/// The copy of the rules has no firewalld that would add a new pod to a zone.
#[test]
fn doctor_reports_what_firewalld_drops_and_who_covers_it() {
    let host = Host::new();
    let firewalld = Firewalld::start(&host);
    let outside = host.outside();
    let a = host.sandbox("a");
    let tool = host.tool();
    let doctor = || tool.doctor();
    let bridge = host.bridge_v4().with("isDefaultGateway", true);
    let bridge = bridge.with("ipMasq", true).config().clone();
    let firewall = serde_json::json!({"type": "firewall"});
    tool.configure("pods", std::slice::from_ref(&bridge));
    let place = "in table inet firewalld, chain filter_FWD_public";
    let words = [place, "adds each new pod to firewalld's zone"];
    doctor().expect("problem", "firewall", &words);
    let live = host.sandbox("live");
    tool.on("add", "pods", &live).on_the_bus().ok();
    assert!(tcp(&live, &outside, "192.0.2.2").is_none());
    for fix in doctor().fixes("firewall") {
        firewalld.command(fix.strip_prefix("firewall-cmd ").unwrap());
    }
    assert!(tcp(&live, &outside, "192.0.2.2").is_some());
    tool.on("del", "pods", &live).on_the_bus().ok();
    doctor().expect("ok", "firewall", &["new packets of pods on cni0 pass"]);
    firewalld.command("--reload");
    tool.configure("pods", &[bridge, firewall]);
    let words = [place, "which a copy of the rules cannot show"];
    doctor().expect("warning", "firewall", &words);
    tool.on("add", "pods", &a).on_the_bus().ok();
    assert!(tcp(&a, &outside, "192.0.2.2").is_some());
    doctor().expect("ok", "firewall", &["new packets of pods on cni0 pass"]);
    firewalld.command("--reload");
    assert!(tcp(&a, &outside, "192.0.2.2").is_none());
    let words = [place, "reload of firewalld", "cnitool reload"];
    doctor().expect("problem", "firewall", &words);
    tool.run(&["reload"]).on_the_bus().ok();
    doctor().expect("ok", "firewall", &["new packets of pods on cni0 pass"]);
}

#[test]
fn zones_are_chosen_and_shared_and_collected() {
    let host = Host::new();
    let firewalld = Firewalld::start(&host);
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let first = join(&fence, &a).with("firewalldZone", "internal");
    run(&first, "ADD", &a).ok();
    assert!(firewalld.sources("internal").contains("10.1.0.2/32"));
    // Another attachment of the same address.
    run(&first, "ADD", &b).ok();
    run(&first, "DEL", &a).ok();
    assert!(firewalld.sources("internal").contains("10.1.0.2/32"));
    run(&first, "CHECK", &b).ok();
    fence.firewall().gc(&[]).on_the_bus().ok();
    assert_eq!(firewalld.sources("internal"), "");
    // What the Go plugin added, without a record.
    firewalld.command("--zone=internal --add-source=10.1.0.2/32");
    run(&first, "DEL", &a).ok();
    assert_eq!(firewalld.sources("internal"), "");
    let unknown = first.with("firewalldZone", "nowhere");
    let refused = run(&unknown, "ADD", &a).error();
    refused.expect(100, &["firewalld", "INVALID_ZONE", "nowhere"]);
    let left = host.run("nft", &["list", "table", "inet", "cni-firewall"]);
    assert!(!left.contains("cni:pods"), "{left}");
}

#[test]
fn a_second_add_keeps_the_zone_and_what_the_first_one_listed() {
    let host = Host::new();
    let firewalld = Firewalld::start(&host);
    let fence = host.fence();
    let a = host.sandbox("a");
    let first = join(&fence, &a).with("firewalldZone", "internal");
    run(&first, "ADD", &a).ok();
    let other = first.clone().with("firewalldZone", "home");
    for verb in ["ADD", "RELOAD"] {
        let words = ["zone internal", "zone home", "add it again"];
        run(&other, verb, &a).error().expect(100, &words);
        run(&first, "CHECK", &a).ok();
        assert!(firewalld.sources("internal").contains("10.1.0.2/32"));
    }
    // RELOAD restores the elements nevertheless.
    host.run("nft", &["delete", "table", "inet", "cni-firewall"]);
    run(&other, "RELOAD", &a)
        .error()
        .expect(100, &["zone home"]);
    run(&first, "CHECK", &a).ok();
    let without = first.clone().with("backend", "nftables");
    run(&without, "ADD", &a).ok();
    run(&without, "DEL", &a).ok();
    for zone in ["internal", "home"] {
        assert_eq!(firewalld.sources(zone), "", "{zone}");
    }
}

#[test]
fn firewalld_that_does_not_run_is_an_error_only_if_it_is_asked_for() {
    let host = Host::new();
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = join(&fence, &a);
    let asking = firewall.clone().with("backend", "firewalld");
    run(&asking, "ADD", &a)
        .error()
        .expect(100, &["D-Bus", "firewalld"]);
    let status = asking.clone().with("cniVersion", "1.1.0").call("STATUS");
    status.error().expect(50, &["firewalld"]);
    run(&asking, "DEL", &a).ok();
    run(&firewall, "ADD", &a).ok();
    let firewalld = Firewalld::start(&host);
    run(&firewall, "CHECK", &a)
        .error()
        .expect(100, &["firewalld lacks"]);
    run(&firewall, "RELOAD", &a).ok();
    assert_eq!(fence.opens(&a), [true; 2]);
    run(&firewall, "DEL", &a).ok();
    assert_eq!(firewalld.sources("trusted"), "");
    run(&firewall, "ADD", &a).ok();
    drop(firewalld);
    run(&firewall, "DEL", &a).ok();
}

#[test]
fn firewalld_that_hangs_ends_del_with_an_error_and_the_next_del_completes_it() {
    del_ends_with_an_error_and_the_next_del_completes_it(Peer::Firewalld);
}

#[test]
fn bus_that_hangs_ends_del_with_an_error_and_the_next_del_completes_it() {
    del_ends_with_an_error_and_the_next_del_completes_it(Peer::Bus);
}

const SILENCE: &str = "firewalld or D-Bus did not answer within 29s";

#[derive(Clone, Copy)]
enum Peer {
    Firewalld,
    Bus,
}

fn del_ends_with_an_error_and_the_next_del_completes_it(peer: Peer) {
    let host = Host::new();
    let firewalld = Firewalld::start(&host);
    let send = |signal| match peer {
        Peer::Firewalld => firewalld.signal(signal),
        Peer::Bus => firewalld.signal_bus(signal),
    };
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = join(&fence, &a);
    run(&firewall, "ADD", &a).ok();
    let b = host.sandbox("b");
    let of_b = fence.join(&b, &[]);
    let calls = [run(&firewall, "DEL", &a), run(&of_b, "ADD", &b)];
    send(Signal::SIGSTOP);
    let start = Instant::now();
    at_once(&calls, |it| it.error().expect(100, &[SILENCE]));
    assert!(start.elapsed() < Duration::from_secs(40));
    send(Signal::SIGCONT);
    run(&firewall, "DEL", &a).ok();
    assert_eq!(firewalld.sources("trusted"), "");
}

/// There is no record of what the Go plugin added.
#[test]
fn bus_that_hangs_ends_del_without_a_record_with_an_error_and_the_next_del_completes_it() {
    let host = Host::new();
    let firewalld = Firewalld::start(&host);
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = join(&fence, &a).with("backend", "firewalld");
    firewalld.command("--zone=trusted --add-source=10.1.0.2/32");
    firewalld.signal_bus(Signal::SIGSTOP);
    run(&firewall, "DEL", &a).error().expect(100, &[SILENCE]);
    firewalld.signal_bus(Signal::SIGCONT);
    assert_eq!(firewalld.sources("trusted"), "10.1.0.2/32");
    run(&firewall, "DEL", &a).ok();
    assert_eq!(firewalld.sources("trusted"), "");
}

#[test]
fn bus_that_hangs_fails_add_and_reload_unless_the_backend_excludes_firewalld() {
    let host = Host::new();
    let firewalld = Firewalld::start(&host);
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let [of_a, of_b] = [&a, &b].map(|it| fence.join(it, &[]));
    run(&of_a, "ADD", &a).ok();
    host.run("nft", &["delete", "table", "inet", "cni-firewall"]);
    let elements = || host.run("nft", &["list", "table", "inet", "cni-firewall"]);
    firewalld.signal_bus(Signal::SIGSTOP);
    run(&of_a, "RELOAD", &a).error().expect(100, &[SILENCE]);
    // RELOAD restores the elements nevertheless.
    assert!(elements().contains("cni:pods/a/eth0"));
    run(&of_b, "ADD", &b).error().expect(100, &[SILENCE]);
    assert!(!elements().contains("cni:pods/b/eth0"));
    let without = of_b.clone().with("backend", "nftables");
    run(&without, "ADD", &b).ok();
    assert!(elements().contains("cni:pods/b/eth0"));
    firewalld.signal_bus(Signal::SIGCONT);
    run(&of_b, "ADD", &b).ok();
    assert_eq!(fence.opens(&b), [true; 2]);
}

#[test]
fn bus_that_hangs_only_delays_verbs_on_a_host_without_firewalld() {
    let host = Host::new();
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = join(&fence, &a).with("cniVersion", "1.1.0");
    // It accepts connections and never answers.
    let _silent = UnixListener::bind("/run/silent").unwrap();
    let running = ["STATUS", "ADD"].map(|verb| {
        let run = firewall.on(verb, &a);
        let run = run.env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/run/silent");
        thread::spawn(move || run.run())
    });
    for outcome in running.map(|it| it.join().unwrap()) {
        assert!(outcome.stderr.contains(SILENCE), "{outcome:?}");
        outcome.ok();
    }
    assert_eq!(fence.opens(&a), [true; 2]);
}

/// A runtime may start a container again with other addresses, although DEL failed.
#[test]
fn sources_that_a_failed_del_left_are_removed_by_the_del_after_the_next_add() {
    let host = Host::new();
    let firewalld = Firewalld::start(&host);
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = join(&fence, &a);
    run(&firewall, "ADD", &a).ok();
    // DEL does this first.
    fs::rename(record(""), record("retired-")).unwrap();
    let mut result = firewall.config()["prevResult"].clone();
    result["ips"] = serde_json::json!([{"address": "10.1.0.77/24", "interface": 2}]);
    let again = firewall.clone().with("prevResult", result);
    run(&again, "ADD", &a).ok();
    let other = again.clone().with("firewalldZone", "home");
    run(&other, "ADD", &a).error().expect(100, &["zone home"]);
    assert_eq!(firewalld.sources("trusted").split(' ').count(), 3);
    run(&again, "DEL", &a).ok();
    assert_eq!(firewalld.sources("trusted"), "");
    assert_eq!(fs::read_dir("/run/cni/firewall").unwrap().count(), 0);
}

#[test]
fn add_that_cannot_write_the_record_forgets_no_sources_that_a_failed_del_left() {
    for harm in ["error=ENOSPC", "signal=KILL"] {
        let host = Host::new();
        let firewalld = Firewalld::start(&host);
        let fence = host.fence();
        let a = host.sandbox("a");
        let firewall = join(&fence, &a);
        run(&firewall, "ADD", &a).ok();
        fs::rename(record(""), record("retired-")).unwrap();
        let mut faulty = strace(&host.dir().join("trace"));
        let (whole, new) = (record(""), record("new-"));
        let fault = format!("-P {whole} -P {new} -e trace=write -e inject=write:{harm}");
        faulty.extend(fault.split_whitespace().map(str::to_owned));
        let outcome = run(&firewall, "ADD", &a).under(&faulty).run();
        if harm == "signal=KILL" {
            assert!(fs::exists(record("new-")).unwrap());
        } else {
            outcome.error().expect(100, &["write record", "space"]);
            assert_eq!(firewalld.sources("trusted"), "");
        }
        run(&firewall, "DEL", &a).ok();
        assert_eq!(firewalld.sources("trusted"), "");
        assert_eq!(fs::read_dir("/run/cni/firewall").unwrap().count(), 0);
    }
}

/// After a DEL that failed, an ADD without firewalld wrote an empty record.
#[test]
fn second_add_lists_the_sources_that_a_failed_del_left() {
    let host = Host::new();
    let firewalld = Firewalld::start(&host);
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = join(&fence, &a);
    run(&firewall, "ADD", &a).ok();
    fs::rename(record(""), record("retired-")).unwrap();
    fs::write(record(""), "").unwrap();
    let without = firewall.clone().with("backend", "nftables");
    run(&without, "ADD", &a).ok();
    run(&without, "DEL", &a).ok();
    assert_eq!(firewalld.sources("trusted"), "");
}

#[test]
fn address_of_no_bus_is_an_error_only_if_firewalld_is_asked_for() {
    let host = Host::new();
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = join(&fence, &a);
    let asking = firewall.clone().with("backend", "firewalld");
    // A bus may refuse a rootless runtime.
    let refusing = UnixListener::bind("/run/refusing").unwrap();
    thread::spawn(move || refusing.incoming().for_each(drop));
    let addresses = "nonsense unix:path=/etc/hosts unix:path=/run/none unix:path=/run/refusing";
    for address in addresses.split(' ') {
        let with_address = |it: Invocation| it.env("DBUS_SYSTEM_BUS_ADDRESS", address);
        let refused = with_address(asking.on("ADD", &a)).error();
        refused.expect(100, &["connect to D-Bus for firewalld"]);
        with_address(firewall.on("ADD", &a)).ok();
        for is_recorded in [true, false] {
            assert_eq!(fs::exists(record("")).unwrap(), is_recorded);
            with_address(firewall.on("DEL", &a)).ok();
        }
    }
}

#[test]
fn reload_that_cannot_write_the_record_leaves_the_former_one() {
    let host = Host::new();
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let firewall = join(&fence, &a);
    for pod in [&a, &b] {
        firewall.on("ADD", pod).ok();
    }
    let record = "/run/cni/firewall/cni:pods:b:eth0";
    let former = fs::read_to_string(record).unwrap();
    assert!(former.contains("cni:pods/a/eth0"), "{former}");
    let _firewalld = Firewalld::start(&host);
    let mut faulty = strace(&host.dir().join("trace"));
    let fault = "-P /run/cni/firewall/cni:pods:b:eth0 -P /run/cni/firewall/new-cni:pods:b:eth0 \
                 -e trace=write -e inject=write:error=ENOSPC";
    faulty.extend(fault.split_whitespace().map(str::to_owned));
    let refused = run(&firewall, "RELOAD", &b).under(&faulty).error();
    refused.expect(100, &[&format!("write record {record}"), "space"]);
    assert_eq!(fs::read_to_string(record).unwrap(), former);
    run(&firewall, "RELOAD", &b).ok();
    assert!(fs::read_to_string(record).unwrap().starts_with("trusted\n"));
}
