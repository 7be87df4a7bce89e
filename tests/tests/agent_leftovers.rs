//! cni-agent and what interrupted ADDs leave under a runtime that keeps the namespace and forgets the
//! pod, as CRI-O does.

use std::path::Path;

use serde_json::{Value, json};
use tests::cri::Cri;
use tests::leaks::{age, bridge, round};
use tests::repair::health;
use tests::{Agent, Host, Place as _, Sandbox, eventually};

const SOCKET: &str = "/run/crio/crio.sock";

fn sections() -> Value {
    json!({"gc": {"runtimeSocket": SOCKET}, "metrics": {}})
}

/// Attaches a pod as an ADD that is killed before its runtime caches the result.
fn interrupted(host: &Host) -> Sandbox {
    let pod = host.sandbox("killed");
    bridge(host).verb("ADD").sandbox(&pod).ok();
    age(&host.lease_dir());
    pod
}

fn agent(host: &Host) -> Agent {
    let agent = Agent::start(host, &sections());
    agent.is_up();
    agent
}

const NAMED: &str = "container killed interface eth0 on network pods stays: its link veth";

#[test]
fn a_link_without_a_process_is_named_with_what_to_do_until_its_pod_is_known() {
    let host = Host::new();
    let tool = host.pods();
    let pod = interrupted(&host);
    let cri = Cri::serve(Path::new(SOCKET));
    let agent = agent(&host);
    round(&agent, &cri);
    agent.says(NAMED);
    let named = health();
    for words in [
        NAMED,
        "has no process",
        "for 10 minutes",
        "cniVersion 1.1.0",
    ] {
        assert!(named.contains(words), "{named}");
    }
    let dry_run = Agent::run(&host, &sections()).argument("--dry-run").run();
    let words = "keep container killed interface eth0 on network pods: its link veth";
    assert!(dry_run.stdout.contains(words), "{dry_run:#?}");
    let doctor = || tool.doctor();
    doctor().expect(
        "warning",
        "leftover",
        &["1 link", "cni:pods/killed/eth0", "1.1.0"],
    );
    // Each of these may be a live pod.
    let process = pod.inhabitant();
    round(&agent, &cri);
    assert_eq!(health(), "ok\n", "{}", agent.log());
    assert!(!doctor().holds("warning", "leftover", &[]));
    drop(process);
    round(&agent, &cri);
    assert!(eventually(|| health().contains(NAMED)), "{}", agent.log());
    cri.runs("killed");
    round(&agent, &cri);
    assert_eq!(health(), "ok\n", "{}", agent.log());
    assert!(pod.pings("10.1.0.1") && !host.leases("pods").is_empty());
}

#[test]
fn an_agent_that_does_not_see_the_runtimes_process_names_the_missing_right() {
    let host = Host::new();
    let _tool = host.pods();
    let _pod = interrupted(&host);
    let cri = Cri::serve(Path::new(SOCKET));
    let agent = Agent::contain(&host, &sections());
    agent.is_up();
    round(&agent, &cri);
    agent.says(NAMED);
    assert!(health().contains("hostPID: true"), "{}", health());
}
