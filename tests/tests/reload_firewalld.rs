//! cnitool reload --follow: pods pass firewalld again after it forgot them.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tests::traffic::tcp;
use tests::{Example, Firewalld, Host, Sandbox, Tool, ended, eventually};

/// A running `cnitool reload --follow`.
struct Follower {
    process: Child,
    log: PathBuf,
}

impl Follower {
    /// Starts it by the command of the unit.
    fn start(host: &Host, tool: &Tool<'_>) -> Self {
        let unit = Example::directory().join("systemd/cni-firewalld.service");
        let unit = fs::read_to_string(unit).unwrap();
        let start = |it: &str| {
            it.strip_prefix("ExecStart=/opt/cni/bin/cnitool ")
                .map(str::to_owned)
        };
        let words = unit.lines().find_map(start).unwrap();
        let words: Vec<_> = words.split(' ').collect();
        let log = host.dir().join("follower.log");
        let mut command = tool.run(&words).on_the_bus().command();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { process, log }
    }

    /// Waits until it has reloaded this many times.
    #[track_caller]
    fn reloaded(&self, times: usize) {
        let count = || self.said().matches("reloaded: 1 (pods 1);").count();
        assert!(eventually(|| count() >= times), "{}", self.said());
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Ends it by SIGTERM.
    fn end(&mut self) {
        kill(
            Pid::from_raw(self.process.id().cast_signed()),
            Signal::SIGTERM,
        )
        .unwrap();
        assert!(ended(&mut self.process).is_some(), "{}", self.said());
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Returns cnitool with a network of bridge and firewall, and a pod that is attached to it.
fn attached<'h>(host: &'h Host, backend: &str) -> (Tool<'h>, Sandbox) {
    let tool = host.tool();
    let firewall = json!({"type": "firewall", "backend": backend});
    let bridge = host
        .bridge()
        .with("isDefaultGateway", true)
        .with("ipMasq", true);
    tool.configure("pods", &[bridge.config().clone(), firewall]);
    let a = host.sandbox("a");
    tool.on("add", "pods", &a).on_the_bus().ok();
    (tool, a)
}

#[test]
fn pods_pass_firewalld_again_after_its_reloads_and_restarts() {
    for backend in ["", "firewalld"] {
        let host = Host::new();
        let outside = host.outside_of_both_families();
        let mut firewalld = Firewalld::start(&host);
        let (tool, a) = attached(&host, backend);
        let passes = || {
            let opens = |it| tcp(&a, &outside, it).is_some();
            opens("192.0.2.2") && opens("2001:db8::2")
        };
        assert!(passes());
        firewalld.command("--reload");
        assert!(!passes());
        let mut follower = Follower::start(&host, &tool);
        let is_complete = || {
            tool.on("check", "pods", &a)
                .on_the_bus()
                .run()
                .status
                .success()
        };
        let restored = |after: &str, follower: &Follower| {
            let is_restored = eventually(|| is_complete() && passes());
            assert!(is_restored, "{after}: {}", follower.said());
        };
        restored("start", &follower);
        firewalld.command("--reload");
        restored("reload", &follower);
        firewalld.command("--complete-reload");
        restored("complete reload", &follower);
        firewalld.restart();
        restored("restart", &follower);
        firewalld.restart_with_the_bus();
        restored("restart of the bus", &follower);
        follower.end();
    }
}

#[test]
fn last_of_many_reloads_wins() {
    let host = Host::new();
    let firewalld = Firewalld::start(&host);
    let (tool, a) = attached(&host, "firewalld");
    let follower = Follower::start(&host, &tool);
    follower.reloaded(1);
    for _ in 0..5 {
        firewalld.command("--reload");
    }
    follower.reloaded(6);
    tool.on("check", "pods", &a).on_the_bus().ok();
}

#[test]
fn follower_waits_for_the_bus_and_refuses_an_address_of_none() {
    let host = Host::new();
    let tool = host.tool();
    let run = tool.run(&["reload", "--follow"]);
    let refused = run.env("DBUS_SYSTEM_BUS_ADDRESS", "nonsense").run();
    refused.expect_failure(&["connect to D-Bus for firewalld"]);
    let follower = Follower::start(&host, &tool);
    let waits = || follower.said().contains("waiting for it");
    assert!(eventually(waits), "{}", follower.said());
    let _firewalld = Firewalld::start(&host);
    let reloads = || follower.said().contains("reloaded: 0;");
    assert!(eventually(reloads), "{}", follower.said());
    assert_eq!(follower.said().matches("waiting for it").count(), 1);
}
