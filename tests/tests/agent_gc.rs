//! Garbage collection by cni-agent: what dead sandboxes left goes, and nothing of live ones.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use kubelet::cri::PodSandboxState;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cri::Cri;
use tests::leaks::{
    STALE, add_by_multus, age, agent, agent_with, bridge, has_stale_lease, lease_of, round, socket,
    stale_lease, with_a_pod,
};
use tests::traffic::tcp_by_port;
use tests::{Agent, Host, Invocation, Place as _, Sandbox, Tool, at_once, eventually};

#[test]
fn what_killed_adds_left_is_removed_and_pods_keep_all() {
    let host = Host::new();
    let _outside = host.outside();
    let tool = host.pods();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    tool.add("pods", &a, &["8080:80/tcp"]);
    add_by_multus(&tool, &b);
    let before = host.snapshot();
    let killed: Vec<_> = (0..12).map(|it| host.sandbox(&format!("k{it}"))).collect();
    let bridge = bridge(&host);
    for (pod, time) in killed.iter().zip((0..).step_by(2)) {
        let add = bridge.clone().verb("ADD").sandbox(pod);
        // The last ones complete, and it is the runtime that did not live to see it.
        add.kill_after(Duration::from_millis(time * time / 2));
    }
    killed.iter().for_each(Sandbox::remove);
    assert!(
        !host.snapshot().differences(&before).is_empty(),
        "nothing was left"
    );
    let cri = Cri::serve(&socket(&host));
    let agent = agent(&host);
    round(&agent, &cri);
    age(&host.lease_dir());
    agent.signal(Signal::SIGHUP);
    let is_clean = eventually(|| host.snapshot().differences(&before).is_empty());
    let left = host.snapshot().differences(&before);
    assert!(is_clean, "{left:#?} {}", agent.log());
    assert!(a.pings("10.1.0.1") && b.pings("10.1.0.1"));
    assert!(tcp_by_port(&host, "192.0.2.1:8080", (&a, 80)).is_some());
}

/// Attaches the pod as different runtimes do.
fn start(turn: u32, (cri, tool): (&Cri, &Tool<'_>), (pod, call): (&Sandbox, &Invocation)) {
    // A runtime lists a sandbox before its ADD, or after it, or is none of the CRI.
    if turn.is_multiple_of(3) {
        cri.runs(pod.name());
    }
    let result = call.clone().verb("ADD").ok();
    if turn % 3 == 1 {
        cri.runs(pod.name());
    }
    // Some runtimes cache results where the agent does not look.
    if turn.is_multiple_of(2) {
        tool.remember("pods", (pod, &result));
    }
}

#[test]
fn pods_that_start_and_stop_beside_rounds_keep_all_that_they_have() {
    let host = Host::new();
    let tool = host.pods();
    let cri = Cri::serve(&socket(&host));
    let agent = agent(&host);
    let run = bridge(&host);
    let live = |number: &u32| {
        for turn in 0..25 {
            let pod = host.sandbox(&format!("pod{number}-{turn}"));
            let call = run.clone().sandbox(&pod);
            start(turn, (&cri, &tool), (&pod, &call));
            let leases = host.leases("pods").into_values();
            let own = leases.filter(|it| it.lines().next() == Some(pod.name()));
            let has_leases = own.count() == 2;
            assert!(has_leases && pod.pings("10.1.0.1"), "{}", agent.log());
            call.verb("DEL").ok();
            drop(fs::remove_file(tool.remembered("pods", &pod)));
            cri.forget(pod.name());
            pod.remove();
        }
    };
    std::thread::scope(|scope| {
        let pods = scope.spawn(|| at_once(&[0, 1, 2, 3], live));
        while !pods.is_finished() {
            // The agent keeps a lease that changes while it looks.
            if !has_stale_lease(&host) {
                stale_lease(&host);
            }
            agent.signal(Signal::SIGHUP);
        }
        pods.join().unwrap();
    });
    assert!(cri.lists() > 20, "only {} rounds ran", cri.lists());
    let log = agent.log();
    assert!(log.contains("DEL container gone"), "{log}");
    assert!(!log.contains("DEL container pod"), "{log}");
    // What the storm left can be collected.
    if !has_stale_lease(&host) {
        stale_lease(&host);
    }
    agent.signal(Signal::SIGHUP);
    let is_gone = eventually(|| !has_stale_lease(&host));
    assert!(is_gone, "{:?} {}", host.leases("pods"), agent.log());
}

/// host-local's index lacks a lease that another program wrote, without the lock, while host-local
/// changed another one. Both changes give the directory one date.
#[test]
fn a_lease_that_the_index_lacks_is_removed() {
    let host = Host::new();
    let (_tool, _pod) = with_a_pod(&host);
    let pods = File::open(host.lease_dir().join("pods")).unwrap();
    let date = pods.metadata().unwrap().modified().unwrap();
    stale_lease(&host);
    pods.set_modified(date).unwrap();
    let cri = Cri::serve(&socket(&host));
    let agent = agent(&host);
    round(&agent, &cri);
    assert!(!has_stale_lease(&host), "{}", agent.log());
    agent.says("DEL container gone interface eth0 on network pods left /");
}

#[test]
fn sandboxes_that_the_runtime_lists_stay_whatever_their_state() {
    let host = Host::new();
    let (_tool, _pod) = with_a_pod(&host);
    let cri = Cri::serve(&socket(&host));
    cri.set("stopped", PodSandboxState::NotReady);
    cri.set("created", PodSandboxState::Ready);
    lease_of(&host, "stopped", "10.1.0.201");
    lease_of(&host, "created", "10.1.0.202");
    stale_lease(&host);
    let agent = agent(&host);
    round(&agent, &cri);
    let leases = host.leases("pods");
    assert!(!leases.contains_key(STALE), "{leases:?} {}", agent.log());
    for address in ["10.1.0.201", "10.1.0.202"] {
        assert!(leases.contains_key(address), "{leases:?}");
    }
    cri.forget("stopped");
    round(&agent, &cri);
    assert_eq!(host.leases("pods").len(), leases.len() - 1);
}

/// They are podman's, for example.
#[test]
fn pods_that_no_runtime_lists_stay_if_their_links_exist() {
    let host = Host::new();
    let tool = host.pods();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    tool.add("pods", &a, &[]);
    add_by_multus(&tool, &b);
    age(&host.lease_dir());
    stale_lease(&host);
    let cri = Cri::serve(&socket(&host));
    let before = host.leases("pods").len();
    let agent = agent(&host);
    round(&agent, &cri);
    assert_eq!(host.leases("pods").len(), before - 1, "{}", agent.log());
    assert!(a.pings("10.1.0.1") && b.pings("10.1.0.1"));
}

#[test]
fn young_leases_and_fresh_results_stay() {
    let host = Host::new();
    let (tool, _pod) = with_a_pod(&host);
    fs::write(host.lease_dir().join("pods/10.1.0.201"), "young\r\neth0").unwrap();
    let ended = host.sandbox("ended");
    tool.add("pods", &ended, &[]);
    host.end(&ended);
    stale_lease(&host);
    let before = host.leases("pods").len();
    let cri = Cri::serve(&socket(&host));
    let agent = agent(&host);
    round(&agent, &cri);
    let leases = host.leases("pods");
    assert!(
        leases.len() == before - 1 && !has_stale_lease(&host),
        "{leases:?}"
    );
    // Its runtime had a minute for its own DEL.
    let hour_ago = SystemTime::now() - Duration::from_hours(1);
    for entry in fs::read_dir(tool.results()).unwrap() {
        let entry = File::open(entry.unwrap().path()).unwrap();
        entry.set_modified(hour_ago).unwrap();
    }
    age(&host.lease_dir());
    round(&agent, &cri);
    let leases = host.leases("pods");
    assert_eq!(leases.len(), 2, "{leases:?} {}", agent.log());
    assert_eq!(fs::read_dir(tool.results()).unwrap().count(), 1);
}

#[test]
fn broken_networks_and_missing_plugins_stop_no_other_network() {
    let host = Host::new();
    let (tool, _pod) = with_a_pod(&host);
    tool.write("00-broken.conflist", "{");
    let bridge = host.bridge_v4().with("bridge", "cni1");
    let missing = json!({"type": "missing"});
    tool.configure("apart", &[bridge.config().clone(), missing]);
    stale_lease(&host);
    let apart = host.lease_dir().join("apart");
    fs::create_dir_all(&apart).unwrap();
    fs::write(apart.join("10.1.0.9"), "gone\r\neth0").unwrap();
    age(&host.lease_dir());
    let cri = Cri::serve(&socket(&host));
    let agent = agent(&host);
    round(&agent, &cri);
    assert!(!has_stale_lease(&host), "{}", agent.log());
    agent.says("00-broken.conflist: ");
    agent.says("gc: 1 of the stale attachments remain: container gone");
    agent.says("plugin missing is not in ");
    assert_eq!(host.leases("apart").len(), 1);
    host.script("missing", "exit 0");
    round(&agent, &cri);
    assert!(host.leases("apart").is_empty(), "{}", agent.log());
    agent.says("gc: works again");
}

#[test]
fn attachments_that_links_cannot_prove_stay_and_are_reported_once() {
    let host = Host::new();
    let tool = host.tool();
    let ipam = host.bridge_v4().config()["ipam"].clone();
    tool.configure("pods", &[json!({"type": "weave-net", "ipam": ipam})]);
    host.script("weave-net", "PATH=$CNI_PATH:$PATH exec host-local");
    stale_lease(&host);
    let cri = Cri::serve(&socket(&host));
    let agent = agent(&host);
    round(&agent, &cri);
    round(&agent, &cri);
    assert!(has_stale_lease(&host));
    let log = agent.log();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(
        log.contains("plugin weave-net makes no link on the host"),
        "{log}"
    );
}

/// Another program has a link on the bridge, or a process removed its address.
#[test]
fn a_link_that_can_be_any_pods_keeps_leases_but_no_results_and_health_shows_it() {
    let host = Host::new();
    let (tool, _pod) = with_a_pod(&host);
    let ended = host.sandbox("ended");
    tool.add("pods", &ended, &[]);
    host.end(&ended);
    let results = || fs::read_dir(tool.results()).unwrap();
    for entry in results() {
        let entry = File::open(entry.unwrap().path()).unwrap();
        entry
            .set_modified(SystemTime::now() - Duration::from_hours(1))
            .unwrap();
    }
    age(&host.lease_dir());
    stale_lease(&host);
    let _other = host.sandbox("other");
    host.ip("link add odd type veth peer name odd0 netns other");
    host.ip("link set odd master cni1");
    let cri = Cri::serve(&socket(&host));
    let agent = agent(&host);
    round(&agent, &cri);
    round(&agent, &cri);
    assert!(has_stale_lease(&host), "{}", agent.log());
    assert!(eventually(|| results().count() == 1), "{}", agent.log());
    agent.says("behind odd, which may be any of them; if odd is no container's, delete it");
    assert_eq!(
        agent.log().matches("behind odd").count(),
        1,
        "{}",
        agent.log()
    );
    host.ip("link delete odd");
    round(&agent, &cri);
    assert!(!has_stale_lease(&host), "{}", agent.log());
    agent.says("gc: works again");
}

#[test]
fn dry_runs_change_nothing() {
    let host = Host::new();
    let (tool, _pod) = with_a_pod(&host);
    stale_lease(&host);
    let cri = Cri::serve(&socket(&host));
    let gc = json!({"runtimeSocket": socket(&host)});
    let before = host.snapshot();
    let run = Agent::run(&host, &json!({ "gc": gc }))
        .argument("--dry-run")
        .run();
    assert!(run.status.success(), "{run:#?}");
    let expected = [
        "keep container CNITOOL interface eth0 on network pods: its sandbox or its link on the \
         host exists",
        "remove container gone interface eth0 on network pods",
    ];
    let entries = fs::read_dir(tool.results()).unwrap();
    let entry = entries.last().unwrap().unwrap().file_name();
    let name = entry.to_str().unwrap();
    let container = &name["pods-".len()..name.len() - "-eth0".len()];
    let lines: Vec<_> = run.stdout.lines().collect();
    assert_eq!(lines, expected.map(|it| it.replace("CNITOOL", container)));
    let agent = agent_with(
        &host,
        &json!({"runtimeSocket": socket(&host), "dryRun": true}),
    );
    round(&agent, &cri);
    round(&agent, &cri);
    agent.says("container gone");
    assert_eq!(
        agent.log().matches("container gone").count(),
        1,
        "{}",
        agent.log()
    );
    assert!(has_stale_lease(&host) && host.snapshot().differences(&before).is_empty());
    drop(cri);
    let refused = Agent::run(&host, &json!({ "gc": gc }))
        .argument("--dry-run")
        .run();
    assert_eq!(refused.status.code(), Some(1), "{refused:#?}");
}

#[test]
fn networks_of_older_versions_and_those_that_forbid_it() {
    let host = Host::new();
    let (tool, _pod) = with_a_pod(&host);
    let file = host.dir().join("net.d/pods.conflist");
    let list: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let cri = Cri::serve(&socket(&host));
    let agent = agent(&host);
    stale_lease(&host);
    let mut forbidding = list.clone();
    forbidding["disableGC"] = json!(true);
    tool.install("pods", &forbidding.to_string());
    round(&agent, &cri);
    assert!(has_stale_lease(&host), "{}", agent.log());
    let mut older = list;
    older["cniVersion"] = json!("0.3.1");
    tool.install("pods", &older.to_string());
    round(&agent, &cri);
    assert!(!has_stale_lease(&host), "{}", agent.log());
}
