//! cni-agent, part `repair`: restores what the suite's tables lose.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::repair::{PERIOD, agent, counts, flush, pass, restored, rules, sections};
use tests::traffic::{tcp, tcp_by_port};
use tests::{Agent, Firewalld, Host, Place as _, Sandbox, Tool, at_once, eventually, http};

const PORTS: [&str; 2] = ["8080:80", "8053:53/udp"];

#[track_caller]
fn works(pod: &Sandbox, outside: &Sandbox) {
    assert!(tcp_by_port(outside, "192.0.2.1:8080", (pod, 80)).is_some());
    assert!(tcp_by_port(outside, "[2001:db8::1]:8080", (pod, 80)).is_some());
    let source = tcp(pod, outside, "192.0.2.2");
    assert_eq!(source, Some("192.0.2.1".parse().unwrap()));
}

#[test]
fn a_flush_is_repaired() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    let before = rules(&host);
    let agent = agent(&host, &sections());
    flush(&host);
    restored(&host, &before);
    works(&a, &outside);
    counts("repairs_total{table=\"cni-portmap\"}", 1);
    counts("repairs_total{table=\"cni-masquerade\"}", 1);
    counts("repair_reloads_total", 2);
    agent.end();
}

#[test]
fn whatever_a_table_loses_is_restored() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    tool.add("pods", &b, &["127.0.0.1:9090:80"]);
    let before = rules(&host);
    let agent = agent(&host, &sections());
    let losses = [
        "delete table inet cni-masquerade",
        "flush table inet cni-portmap",
        "delete table bridge cni-bridge",
        "flush map inet cni-masquerade pods4",
        "delete element inet cni-portmap ports4 { tcp . 8080 }",
        "flush chain inet cni-portmap martians",
    ];
    for (loss, number) in losses.iter().zip(1..) {
        host.run("nft", &[loss]);
        // A RELOAD that still runs would restore what the next one is for.
        let reloads = || agent.log().matches("reloaded: ").count();
        assert!(eventually(|| reloads() > number), "{loss}: {}", agent.log());
        restored(&host, &before);
    }
    works(&a, &outside);
    agent.end();
}

#[test]
fn flushes_without_a_pause_cause_at_most_one_reload_a_second() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    let before = rules(&host);
    let agent = agent(&host, &sections());
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        flush(&host);
        pass(Duration::from_millis(20));
    }
    let reloads = agent.log().matches("reloaded: ").count();
    assert!((3..=6).contains(&reloads), "{}", agent.log());
    restored(&host, &before);
}

/// Configures a network with all plugins that have elements.
fn configure(host: &Host, tool: &Tool<'_>) {
    let bridge = host
        .bridge()
        .with("isDefaultGateway", true)
        .with("ipMasq", true)
        .with("macspoofchk", true);
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let bandwidth = json!({"type": "bandwidth", "egressRate": 8_000_000, "egressBurst": 800_000});
    let firewall = json!({"type": "firewall", "ingressPolicy": "same-bridge"});
    tool.configure(
        "all",
        &[bridge.config().clone(), bandwidth, portmap, firewall],
    );
}

#[test]
fn many_dels_cause_no_reload() {
    let host = Host::new();
    let tool = host.tool();
    configure(&host, &tool);
    let numbers: Vec<_> = (0..30).collect();
    let pods: Vec<_> = numbers
        .iter()
        .map(|it| host.sandbox(&format!("p{it}")))
        .collect();
    for (pod, number) in pods.iter().zip(&numbers) {
        tool.add("all", pod, &[&format!("{}:80", 9000 + number)]);
    }
    let agent = agent(&host, &sections());
    at_once(&[0, 1, 2], |worker| {
        for pod in pods.iter().skip(*worker).step_by(3) {
            tool.on("del", "all", pod).ok();
        }
    });
    pass(PERIOD);
    assert_eq!(
        agent.log().matches("reloaded: ").count(),
        1,
        "{}",
        agent.log()
    );
    let last = host.sandbox("last");
    tool.add("all", &last, &["9000:80"]);
    let there = rules(&host);
    host.run(
        "nft",
        &["flush table inet cni-firewall; flush set inet cni-firewall pods4"],
    );
    restored(&host, &there);
    host.run("nft", &["flush set inet cni-firewall bridges"]);
    restored(&host, &there);
    host.run("nft", &["flush set bridge cni-bandwidth limits"]);
    restored(&host, &there);
}

#[test]
fn nothing_is_repaired_while_the_file_exists() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    let before = rules(&host);
    let file = host.dir().join("no-repair");
    let mut sections = sections();
    sections["repair"]["unless"] = json!(file);
    let agent = agent(&host, &sections);
    fs::write(&file, "").unwrap();
    flush(&host);
    agent.says("nothing is repaired until");
    pass(PERIOD);
    assert!(!rules(&host).concat().contains("cni:"));
    counts("repair_declined_total", 1);
    fs::remove_file(&file).unwrap();
    restored(&host, &before);
}

#[test]
fn a_del_beside_a_repair_leaves_nothing() {
    let host = Host::new();
    let tool = host.pods();
    let _agent = agent(&host, &sections());
    for round in 0..6 {
        let a = host.sandbox(&format!("a{round}"));
        tool.add("pods", &a, &PORTS);
        flush(&host);
        pass(Duration::from_millis(100 + 40 * round));
        tool.on("del", "pods", &a).ok();
        pass(PERIOD);
        let left = rules(&host).concat();
        assert!(!left.contains("cni:"), "{left}");
    }
}

/// firewalld deletes no table of the suite, so only the bus reports its reload.
#[test]
fn pods_pass_firewalld_again_after_its_reload() {
    let host = Host::new();
    let outside = host.outside();
    let firewalld = Firewalld::start(&host);
    let tool = host.tool();
    let bridge = host
        .bridge()
        .with("isDefaultGateway", true)
        .with("ipMasq", true);
    tool.configure(
        "pods",
        &[bridge.config().clone(), json!({"type": "firewall"})],
    );
    let a = host.sandbox("a");
    tool.on("add", "pods", &a).on_the_bus().ok();
    let agent = Agent::run(&host, &json!({"repair": {"firewalld": true}}));
    let mut agent = agent.on_the_bus().command().spawn().unwrap();
    let passes = || tcp(&a, &outside, "192.0.2.2").is_some();
    let is_complete = || {
        let check = tool.on("check", "pods", &a).on_the_bus();
        check.run().status.success()
    };
    pass(2 * PERIOD);
    for _ in 0..2 {
        firewalld.command("--reload");
        let is_restored = eventually(|| is_complete() && passes());
        // The agent ends with the test, whatever its outcome.
        if !is_restored {
            agent.kill().unwrap();
        }
        assert!(is_restored);
    }
    agent.kill().unwrap();
    agent.wait().unwrap();
}

#[test]
fn a_plugin_that_hangs_stops_neither_health_nor_the_end() {
    let host = Host::new();
    let tool = host.tool();
    let answer = r#"case $CNI_COMMAND in
        VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"], "verbs": ["ADD", "RELOAD"]}';;
        ADD) echo '{"cniVersion": "1.1.0"}';;
        *) exec sleep 15;;
        esac"#;
    host.script("stuck", answer);
    tool.configure("pods", &[json!({"type": "stuck"})]);
    tool.add("pods", &host.sandbox("a"), &[]);
    let agent = Agent::start(&host, &sections());
    let is_stuck = || host.processes().iter().any(|it| it == "sleep 15");
    assert!(eventually(is_stuck));
    assert!(http::get(9799, "/healthz").unwrap().ends_with("ok\n"));
    agent.end();
    for process in host.processes() {
        assert!(process == "sleep 15", "{process}");
    }
}
