//! Garbage collection by cni-agent while container runtimes and plugins fail, and its configuration.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::json;
use tests::cri::{Cri, Manner, peer};
use tests::leaks::{
    age, agent, agent_with, has_stale_lease, lease_of, round, socket, stale_lease, with_a_pod,
};
use tests::{Agent, Host, eventually};

#[test]
fn nothing_is_removed_without_a_runtime_and_its_socket_brings_the_next_round() {
    let host = Host::new();
    let (_tool, _pod) = with_a_pod(&host);
    stale_lease(&host);
    let agent = agent(&host);
    agent.signal(Signal::SIGHUP);
    agent.says("gc: nothing was removed: /run/test/runtime/cri.sock: ");
    assert!(has_stale_lease(&host));
    let cri = Cri::serve(&socket(&host));
    assert!(eventually(|| !has_stale_lease(&host)), "{}", agent.log());
    agent.says("gc: works again");
    // The runtime dies, and its socket stays.
    drop(cri);
    peer(&socket(&host), drop);
    stale_lease(&host);
    agent.signal(Signal::SIGHUP);
    let dead = || agent.log().matches("gc: nothing was removed").count() == 2;
    assert!(eventually(dead), "{}", agent.log());
    assert!(has_stale_lease(&host));
    let _cri = Cri::serve(&socket(&host));
    assert!(eventually(|| !has_stale_lease(&host)), "{}", agent.log());
    agent.end();
}

#[test]
fn nothing_is_removed_if_the_runtime_answers_wrongly() {
    let host = Host::new();
    let (_tool, _pod) = with_a_pod(&host);
    stale_lease(&host);
    let cri = Cri::serve(&socket(&host));
    let agent = agent(&host);
    let message = format!("secret\n{}", "x".repeat(5000));
    for (manner, words) in [
        (Manner::Hangs, "list sandboxes: no answer within 5s"),
        (
            Manner::Fails(message),
            "list sandboxes: Internal error: secret\\nxxx",
        ),
        (Manner::Floods(17 << 20), "decoded message length too large"),
    ] {
        cri.behaves(manner);
        agent.signal(Signal::SIGHUP);
        agent.says(words);
        assert!(has_stale_lease(&host), "{}", agent.log());
    }
    let log = agent.log();
    assert!(log.lines().all(|it| it.len() < 500), "{log}");
    assert!(agent.peak() < 60 << 10, "{} KiB", agent.peak());
    cri.behaves(Manner::Lists);
    agent.signal(Signal::SIGHUP);
    assert!(eventually(|| !has_stale_lease(&host)), "{}", agent.log());
}

#[test]
fn nothing_is_removed_if_the_socket_belongs_to_another_service() {
    let host = Host::new();
    let (_tool, _pod) = with_a_pod(&host);
    stale_lease(&host);
    let garbage = |mut it: std::os::unix::net::UnixStream| {
        while it.write_all(&[0xa5; 4096]).is_ok() {}
    };
    peer(&socket(&host), garbage);
    let agent = agent(&host);
    agent.signal(Signal::SIGHUP);
    agent.says("gc: nothing was removed");
    let silent = |mut it: std::os::unix::net::UnixStream| drop(it.read_to_end(&mut Vec::new()));
    peer(&socket(&host), silent);
    agent.says("no answer within 5s");
    let http1 = |mut it: std::os::unix::net::UnixStream| {
        drop(it.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"));
    };
    peer(&socket(&host), http1);
    agent.signal(Signal::SIGHUP);
    assert!(has_stale_lease(&host));
    assert!(agent.peak() < 60 << 10, "{} KiB", agent.peak());
    let _cri = Cri::serve(&socket(&host));
    assert!(eventually(|| !has_stale_lease(&host)), "{}", agent.log());
}

#[test]
fn a_node_without_cri_goes_by_its_own_proofs() {
    let host = Host::new();
    let (_tool, _pod) = with_a_pod(&host);
    stale_lease(&host);
    let usual = agent_with(&host, &json!({}));
    usual.signal(Signal::SIGHUP);
    usual.says("neither /run/containerd/containerd.sock nor /run/crio/crio.sock exists");
    assert!(has_stale_lease(&host));
    drop(usual);
    let agent = agent_with(&host, &json!({"runtimeSocket": null}));
    agent.signal(Signal::SIGHUP);
    assert!(eventually(|| !has_stale_lease(&host)), "{}", agent.log());
}

/// Each of the usual sockets that exists has to answer.
#[test]
fn sandboxes_of_two_runtimes_stay() {
    let host = Host::new();
    let (_tool, _pod) = with_a_pod(&host);
    let containerd = Cri::serve(Path::new("/run/containerd/containerd.sock"));
    let crio = Cri::serve(Path::new("/run/crio/crio.sock"));
    containerd.runs("one");
    crio.runs("two");
    lease_of(&host, "one", "10.1.0.201");
    lease_of(&host, "two", "10.1.0.202");
    stale_lease(&host);
    let agent = agent_with(&host, &json!({}));
    crio.behaves(Manner::Fails("starts".into()));
    agent.signal(Signal::SIGHUP);
    agent.says("/run/crio/crio.sock: list sandboxes: Internal error: starts");
    assert!(has_stale_lease(&host));
    crio.behaves(Manner::Lists);
    round(&agent, &crio);
    let leases = host.leases("pods");
    let stay = ["10.1.0.201", "10.1.0.202"].map(|it| leases.contains_key(it));
    assert!(
        stay == [true; 2] && !has_stale_lease(&host),
        "{leases:?} {}",
        agent.log()
    );
    // A runtime that stops removes its socket, while its sandboxes live on.
    fs::remove_file("/run/crio/crio.sock").unwrap();
    stale_lease(&host);
    agent.signal(Signal::SIGHUP);
    agent.says("/run/crio/crio.sock was there, but is missing");
    assert!(host.leases("pods").contains_key("10.1.0.202") && has_stale_lease(&host));
}

#[test]
fn a_plugin_that_hangs_is_killed_and_stops_no_other_network() {
    let host = Host::new();
    let (tool, _pod) = with_a_pod(&host);
    let bridge = host.bridge_v4().with("bridge", "cni1");
    let hangs = json!({"type": "hangs"});
    tool.configure("apart", &[bridge.config().clone(), hangs]);
    host.script("hangs", "echo $$ >>/run/test/hangs; sleep 1000 & wait");
    let apart = host.lease_dir().join("apart");
    fs::create_dir_all(&apart).unwrap();
    for number in 3..6 {
        fs::write(
            apart.join(format!("10.1.0.{number}")),
            format!("gone{number}\r\neth0"),
        )
        .unwrap();
    }
    age(&host.lease_dir());
    stale_lease(&host);
    let cri = Cri::serve(&socket(&host));
    let gc = json!({"runtimeSocket": socket(&host), "delTimeout": "1s"});
    let agent = agent_with(&host, &gc);
    agent.signal(Signal::SIGHUP);
    agent.says("gc: 3 of the stale attachments remain: container gone3");
    agent.says("hangs did not end within 1s and was killed");
    assert!(!has_stale_lease(&host), "{}", agent.log());
    let started = fs::read_to_string(host.dir().join("hangs")).unwrap();
    assert_eq!(started.lines().count(), 1, "{}", agent.log());
    assert!(eventually(|| !host
        .processes()
        .iter()
        .any(|it| it.contains("1000"))));
    host.script("hangs", "exit 0");
    round(&agent, &cri);
    assert!(host.leases("apart").is_empty(), "{}", agent.log());
}

#[test]
fn a_plugin_or_runtime_that_hangs_does_not_delay_the_end() {
    let host = Host::new();
    let (tool, _pod) = with_a_pod(&host);
    let bridge = host.bridge_v4().with("bridge", "cni1");
    tool.configure("pods", &[bridge.config().clone(), json!({"type": "hangs"})]);
    host.script("hangs", "touch /run/test/hangs; exec sleep 30");
    stale_lease(&host);
    let cri = Cri::serve(&socket(&host));
    let first = agent(&host);
    first.signal(Signal::SIGHUP);
    assert!(
        eventually(|| host.dir().join("hangs").exists()),
        "{}",
        first.log()
    );
    first.end();
    cri.behaves(Manner::Hangs);
    let second = agent(&host);
    let lists = cri.lists();
    second.signal(Signal::SIGHUP);
    assert!(eventually(|| cri.lists() > lists));
    second.end();
}

#[test]
fn wrong_values_are_refused_by_key_and_value() {
    let host = Host::new();
    for (gc, words) in [
        (
            json!({"interval": "10s"}),
            "gc.interval: \"10s\": it is shorter than 30s",
        ),
        (
            json!({"runtimeSocket": "cri.sock"}),
            "gc.runtimeSocket: \"cri.sock\": ",
        ),
        (json!({"dryRun": 1}), "gc.dryRun: invalid type: integer `1`"),
        (json!({"delTimeout": "0s"}), "gc.delTimeout: \"0s\": "),
        (json!({"every": "5m"}), "unknown field `every`"),
    ] {
        let outcome = Agent::run(&host, &json!({ "gc": gc })).run();
        outcome.expect_failure(&[words]);
    }
}

/// Returns the seconds since the machine's boot. The test itself may run in a time namespace.
fn uptime() -> f64 {
    let number = |file: &str, word: usize| -> f64 {
        let text = fs::read_to_string(file).unwrap();
        let word = text.split_whitespace().nth(word);
        word.unwrap().parse().unwrap()
    };
    number("/proc/uptime", 0) - number("/proc/self/timens_offsets", 4)
}

/// NTP may set the clock, so files look older than they are. In a time namespace, the node booted a
/// minute ago.
#[test]
fn nothing_is_removed_soon_after_a_boot() {
    let host = Host::new();
    let (_tool, _pod) = with_a_pod(&host);
    stale_lease(&host);
    let _cri = Cri::serve(&socket(&host));
    let back = format!("--boottime=-{:.0}", (uptime() - 60.0).max(0.0));
    let gc = json!({ "gc": {"runtimeSocket": socket(&host)} });
    let run = |arguments: &[&str]| {
        let agent = Agent::run(&host, &gc).command();
        let mut command = Command::new("unshare");
        command.args(["--time", "--fork", "--kill-child", &back]);
        command.arg(agent.get_program()).args(agent.get_args());
        command.args(arguments).stdin(Stdio::null());
        command
    };
    let dry = run(&["--dry-run"]).output().unwrap();
    let text = String::from_utf8(dry.stdout).unwrap();
    let keeps = "keep container gone interface eth0 on network pods: the clock was set, or";
    assert!(text.contains(keeps), "{text}");
    let log = host.dir().join("agent.log");
    let mut command = run(&[]);
    let mut child = command
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let says = || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("nothing is removed until then")
    };
    let is_said = eventually(says);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        is_said && has_stale_lease(&host),
        "{:?}",
        fs::read_to_string(&log)
    );
}

#[test]
fn sighup_ends_no_agent_that_collects_nothing() {
    let host = Host::new();
    let agent = Agent::start(&host, &json!({}));
    agent.is_up();
    agent.signal(Signal::SIGHUP);
    agent.end();
}
