//! cni-agent and sandboxes that a runtime names by `/proc/PID/ns/net`, as nerdctl and cri-dockerd do.

use std::fs;

use serde_json::{Value, json};
use tests::leaks::age;
use tests::repair::{PERIOD, flush, health, pass, restored, rules, sections};
use tests::{Agent, Example, Host, Inhabitant, Invocation, Sandbox, Tool, eventually};

const UNIT: &str = "systemd/cni-agent.service";
const DROP_IN: &str = "systemd/cni-agent-proc.conf";

/// Limits a run to the capabilities that these files of systemd grant.
fn limited(run: Invocation, files: &[&str]) -> Invocation {
    let directory = Example::directory();
    let texts = files
        .iter()
        .map(|it| fs::read_to_string(directory.join(it)).unwrap());
    let text = texts.collect::<String>();
    let sets = text
        .lines()
        .filter_map(|it| it.strip_prefix("CapabilityBoundingSet=CAP_"));
    let names = sets.flat_map(|it| it.split(" CAP_")).map(str::to_lowercase);
    let names: Vec<_> = names.collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    run.with_capabilities(&names)
}

/// Attaches a pod with a process by the path of that process.
fn pod(host: &Host) -> (Tool<'_>, Sandbox, Inhabitant) {
    let tool = host.pods();
    let pod = host.sandbox("a");
    let inhabitant = pod.inhabitant();
    let path = inhabitant.netns();
    tool.run(&["add", "pods", path.to_str().unwrap()])
        .env(
            "CAP_ARGS",
            r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}"#,
        )
        .ok();
    age(&host.lease_dir());
    (tool, pod, inhabitant)
}

/// Checks that garbage collection keeps the attachment.
#[track_caller]
fn is_kept(host: &Host, wrap: impl Fn(Invocation) -> Invocation) {
    let sections: Value = json!({"gc": {"runtimeSocket": null}});
    let dry_run = wrap(Agent::run(host, &sections)).argument("--dry-run");
    let outcome = dry_run.run();
    assert!(outcome.status.success(), "{outcome:#?}");
    assert!(outcome.stdout.starts_with("keep "), "{outcome:#?}");
    assert_eq!(outcome.stdout.lines().count(), 1, "{outcome:#?}");
}

#[test]
fn with_the_drop_in_such_attachments_are_repaired() {
    let host = Host::new();
    let (_tool, _pod, _inhabitant) = pod(&host);
    let before = rules(&host);
    let agent = Agent::spawn(
        &host,
        &limited(Agent::run(&host, &sections()), &[UNIT, DROP_IN]),
    );
    agent.says("reloaded: 1 (pods 1); sandbox gone: 0;");
    pass(PERIOD);
    flush(&host);
    restored(&host, &before);
    assert!(eventually(|| health() == "ok\n"), "{}", agent.log());
    is_kept(&host, |it| limited(it, &[UNIT, DROP_IN]));
}

#[test]
fn without_ptrace_such_attachments_are_neither_dead_nor_silently_unrepaired() {
    let host = Host::new();
    let (_tool, _pod, _inhabitant) = pod(&host);
    let agent = Agent::spawn(&host, &limited(Agent::run(&host, &sections()), &[UNIT]));
    agent.says("reloaded: ");
    pass(PERIOD);
    flush(&host);
    let is_reported = || {
        let health = health();
        health.contains("could not restore: 1;") && health.contains("Permission denied")
    };
    assert!(eventually(is_reported), "{}", agent.log());
    is_kept(&host, |it| limited(it, &[UNIT]));
}

/// A container without the host's pid namespace has other processes at such a path, or none.
#[test]
fn in_another_pid_namespace_such_attachments_are_neither_dead_nor_silently_unrepaired() {
    let host = Host::new();
    let (_tool, _pod, _inhabitant) = pod(&host);
    let words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let contained = |it: Invocation| it.under(&words.map(str::to_owned));
    let agent = Agent::spawn(&host, &contained(Agent::run(&host, &sections())));
    agent.says("does not exist here, but its link");
    let is_reported = || health().contains("could not restore: 1;");
    assert!(eventually(is_reported), "{}", agent.log());
    is_kept(&host, contained);
}
