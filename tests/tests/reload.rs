//! cnitool reload: restores what a reload of the host's firewall removed.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tests::repair::flush;
use tests::traffic::{Connection, tcp, tcp_by_port, udp_by_port};
use tests::{Host, Outcome, Place as _, Sandbox, at_once, eventually};

const PORTS: [&str; 2] = ["8080:80", "8053:53/udp"];

/// Returns all rules with their handles, which differ after a replacement.
fn rules(host: &Host) -> String {
    host.run("nft", &["--json", "--handle", "list", "ruleset"])
}

/// Returns whether the pod is masqueraded in each family.
fn masqueraded(pod: &Sandbox, outside: &Sandbox) -> [bool; 2] {
    [("192.0.2.2", "192.0.2.1"), ("2001:db8::2", "2001:db8::1")]
        .map(|(to, from)| tcp(pod, outside, to) == Some(from.parse().unwrap()))
}

/// Returns whether the pod is reachable by TCP and UDP in both families.
fn forwarded(pod: &Sandbox, outside: &Sandbox) -> [bool; 4] {
    let tcp = |target| tcp_by_port(outside, target, (pod, 80)).is_some();
    let udp = |target| udp_by_port(outside, target, (pod, 53)).is_some();
    [
        tcp("192.0.2.1:8080"),
        tcp("[2001:db8::1]:8080"),
        udp("192.0.2.1:8053"),
        udp("[2001:db8::1]:8053"),
    ]
}

/// Returns whether frames of the pod with another MAC arrive.
fn forges(pod: &Sandbox, gateway: &str) -> bool {
    let own = pod.mac("eth0");
    let answers = |mac: &str| {
        pod.ip(&format!("link set eth0 address {mac}"));
        pod.pings(gateway)
    };
    let forged = answers("02:00:00:00:00:66");
    assert!(answers(&own));
    forged
}

#[track_caller]
fn says(outcome: &Outcome, words: &[&str]) {
    for word in words {
        assert!(outcome.stderr.contains(word), "{word:?}: {outcome:#?}");
    }
}

/// Checks that the run succeeded and its last line begins with `summary`.
#[track_caller]
fn reloads(outcome: &Outcome, summary: &str) {
    outcome.ok();
    let last = outcome.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with(summary), "{outcome:#?}");
}

#[test]
fn everything_that_a_flush_removed_works_again() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [warm, a] = ["warm", "a"].map(|name| host.sandbox(name));
    let tool = host.pods();
    tool.add("pods", &warm, &PORTS);
    tool.on("del", "pods", &warm).ok();
    let before = host.snapshot();
    tool.add("pods", &a, &PORTS);
    let there = rules(&host);
    flush(&host);
    assert_eq!(masqueraded(&a, &outside), [false; 2]);
    assert_eq!(forwarded(&a, &outside), [false; 4]);
    assert!(forges(&a, "10.1.0.1"));
    let outcome = tool.run(&["reload"]).run();
    reloads(&outcome, "reloaded: 1 (pods 1); sandbox gone: 0;");
    assert_eq!(masqueraded(&a, &outside), [true; 2]);
    assert_eq!(forwarded(&a, &outside), [true; 4]);
    assert!(!forges(&a, "10.1.0.1"));
    tool.on("check", "pods", &a).ok();
    assert_eq!(without_handles(&rules(&host)), without_handles(&there));
    tool.on("del", "pods", &a).ok();
    host.snapshot().assert_same_as(&before);
}

fn without_handles(rules: &str) -> Vec<Value> {
    let rules: Value = serde_json::from_str(rules).unwrap();
    let objects = rules["nftables"].as_array().unwrap().iter();
    let mut objects: Vec<_> = objects.cloned().collect();
    for object in &mut objects {
        for (_, content) in object.as_object_mut().unwrap() {
            content.as_object_mut().unwrap().remove("handle");
            if let Some(elements) = content["elem"].as_array_mut() {
                elements.sort_by_key(Value::to_string);
            }
        }
    }
    objects.sort_by_key(Value::to_string);
    objects
}

#[test]
fn where_all_is_in_place_nothing_changes() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    let mut towards = Connection::open(&outside, "192.0.2.1:8080", (&a, 80));
    let mut away = Connection::open(&a, "192.0.2.2:9000", (&outside, 9000));
    let before = rules(&host);
    let events = host.dir().join("events");
    let file = fs::File::create(&events).unwrap();
    let mut monitor = Command::new("nft")
        .arg("monitor")
        .stdout(Stdio::from(file))
        .spawn()
        .unwrap();
    let heard = || fs::read_to_string(&events).unwrap();
    // A probe table shows that the monitor works.
    assert!(eventually(|| {
        host.run("nft", &["add table ip probe; delete table ip probe"]);
        heard().contains("delete table ip probe")
    }));
    let so_far = heard().len();
    let outcome = tool.run(&["reload"]).run();
    host.run("nft", &["add table ip last; delete table ip last"]);
    assert!(eventually(|| heard().contains("delete table ip last")));
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    reloads(&outcome, "reloaded: 1 (pods 1);");
    assert_eq!(rules(&host), before);
    let since = heard().split_off(so_far);
    assert!(!since.contains("cni"), "{since}");
    assert!(towards.carries() && away.carries());
}

#[test]
fn a_mac_that_the_pod_chose_meanwhile_does_not_become_its_own() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &[]);
    flush(&host);
    a.ip("link set eth0 address 02:00:00:00:00:66");
    assert!(a.pings("10.1.0.1"));
    tool.run(&["reload"]).ok();
    assert!(!a.pings("10.1.0.1"));
    a.ip("link set eth0 address 0a:58:0a:01:00:02");
    assert!(a.pings("10.1.0.1"));
}

#[test]
fn attachments_that_are_gone_are_skipped() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let tool = host.pods();
    tool.add("pods", &a, &["9001:80"]);
    tool.add("pods", &b, &PORTS);
    tool.add("pods", &c, &["9003:80"]);
    a.remove();
    c.unmount();
    flush(&host);
    let outcome = tool.run(&["reload"]).run();
    reloads(&outcome, "reloaded: 1 (pods 1); sandbox gone: 2 (pods 2);");
    assert_eq!(forwarded(&b, &outside), [true; 4]);
    let there = rules(&host);
    assert!(
        !there.contains("9001") && !there.contains("9003"),
        "{there}"
    );
}

#[test]
fn one_network_is_reloaded_by_its_name() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = host.pods();
    tool.configure_all("others", 2);
    tool.add("pods", &a, &[]);
    tool.add("others", &b, &[]);
    flush(&host);
    let outcome = tool.run(&["reload", "others"]).run();
    reloads(&outcome, "reloaded: 1 (others 1); sandbox gone: 0;");
    assert_eq!(masqueraded(&b, &outside), [true; 2]);
    assert_eq!(masqueraded(&a, &outside), [false; 2]);
    reloads(
        &tool.run(&["reload"]).run(),
        "reloaded: 2 (others 1, pods 1);",
    );
    assert_eq!(masqueraded(&a, &outside), [true; 2]);
    let outcome = tool.run(&["reload", "plugh"]).run();
    outcome.expect_failure(&["plugh", "only others, pods"]);
}

#[test]
fn a_port_that_another_took_meanwhile_stays_with_it() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    tool.add("pods", &b, &["9090:80"]);
    flush(&host);
    tool.add("pods", &c, &["8080:80"]);
    let outcome = tool.run(&["reload"]).run();
    outcome.expect_failure(&["tcp port 8080", "is held by cni:pods/", "code 11"]);
    says(&outcome, &["reloaded: 2 (pods 2);", "failed: 1 (pods 1)"]);
    let reaches = |pod, target| tcp_by_port(&outside, target, (pod, 80)).is_some();
    assert!(reaches(&c, "192.0.2.1:8080") && reaches(&b, "192.0.2.1:9090"));
    assert_eq!(masqueraded(&a, &outside), [true; 2], "its bridge was asked");
    tool.on("del", "pods", &c).ok();
    tool.run(&["reload"]).ok();
    assert_eq!(forwarded(&a, &outside), [true; 4]);
}

#[test]
fn files_that_are_no_entries_are_named_and_skipped() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    let write = |name: &str, text: &str| fs::write(tool.results().join(name), text).unwrap();
    write("pods-half-eth0", "{\"kind\": \"cniCacheV1\", \"contai");
    write("pods-other-eth0", "{\"kind\": \"cniCacheV9\"}");
    write("pods-old-eth0", "{\"cniVersion\": \"0.3.1\"}");
    write("a", "\0");
    fs::create_dir(tool.results().join("directory")).unwrap();
    flush(&host);
    let outcome = tool.run(&["reload"]).run();
    reloads(&outcome, "reloaded: 1 (pods 1);");
    for name in [
        "pods-half-eth0",
        "pods-other-eth0",
        "pods-old-eth0",
        "directory",
    ] {
        says(&outcome, &[&format!("/var/lib/cni/results/{name}: ")]);
    }
    assert_eq!(forwarded(&a, &outside), [true; 4]);
}

/// A plugin whose VERSION does not list the verb must not be called.
#[test]
fn plugins_without_reload_are_not_called() {
    let host = Host::new();
    let tool = host.tool();
    let log = host.dir().join("calls");
    let body = format!(
        "echo $CNI_COMMAND >> {}\necho '{{\"cniVersion\": \"1.1.0\"}}'",
        log.display()
    );
    host.script("stranger", &body);
    tool.configure(
        "pods",
        &[json!({"type": "stranger"}), json!({"type": "loopback"})],
    );
    for name in ["a", "b"] {
        tool.add("pods", &host.sandbox(name), &[]);
    }
    let outcome = tool.run(&["reload"]).run();
    reloads(
        &outcome,
        "reloaded: 0; sandbox gone: 0; nothing to reload: 2 (pods 2)",
    );
    assert_eq!(outcome.stderr.matches("RELOAD").count(), 1, "{outcome:#?}");
    says(&outcome, &["plugin stranger does not support RELOAD"]);
    assert_eq!(fs::read_to_string(log).unwrap(), "ADD\nADD\nVERSION\n");
}

#[test]
fn two_reloads_and_an_add_at_once_get_along() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let sandboxes = ["a", "b", "c", "d", "e"].map(|name| host.sandbox(name));
    let tool = host.pods();
    let [a, others @ ..] = &sandboxes;
    for (sandbox, port) in others.iter().zip(9001..) {
        tool.add("pods", sandbox, &[&format!("{port}:80")]);
    }
    flush(&host);
    at_once(&[0, 1, 2], |worker| match worker {
        0 => drop(tool.add("pods", a, &PORTS)),
        _ => drop(tool.run(&["reload"]).ok()),
    });
    assert_eq!(forwarded(a, &outside), [true; 4]);
    for sandbox in &sandboxes {
        tool.on("check", "pods", sandbox).ok();
        assert_eq!(masqueraded(sandbox, &outside), [true; 2]);
    }
}

/// DEL removes the elements before the pair, which RELOAD needs to find their owner.
#[test]
fn a_del_beside_a_reload_leaves_nothing() {
    let host = Host::new();
    let tool = host.pods();
    for round in 0..20 {
        let a = host.sandbox(&format!("a{round}"));
        tool.add("pods", &a, &PORTS);
        flush(&host);
        at_once(&[0, 1, 2], |worker| match worker {
            0 => drop(tool.on("del", "pods", &a).ok()),
            _ => drop(tool.run(&["reload"]).run()),
        });
        let left = rules(&host);
        assert!(!left.contains("cni:"), "{left}");
    }
}
