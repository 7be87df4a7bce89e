//! Garbage collection by cni-agent: what dead sandboxes left goes, and nothing of live ones.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kubelet::cri::PodSandboxState;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cri::{Cri, Manner, peer};
use tests::traffic::tcp_by_port;
use tests::{Agent, Host, Invocation, Place as _, Sandbox, Tool, at_once, eventually};

/// Returns the socket of the fake runtime.
fn socket(host: &Host) -> PathBuf {
    host.dir().join("runtime/cri.sock")
}

/// Starts an agent that asks the runtime at [`socket`].
fn agent(host: &Host) -> Agent {
    agent_with(host, &json!({"runtimeSocket": socket(host)}))
}

fn agent_with(host: &Host, gc: &Value) -> Agent {
    let agent = Agent::start(host, &json!({ "gc": gc }));
    agent.is_up();
    agent
}

/// Runs a whole round. The second round does not begin before the first one has ended.
#[track_caller]
fn round(agent: &Agent, cri: &Cri) {
    let before = cri.lists();
    for count in 1..=2 {
        agent.signal(Signal::SIGHUP);
        let is_asked = eventually(|| cri.lists() >= before + count);
        assert!(is_asked, "{}", agent.log());
    }
}

/// Makes every lease below `directory` an hour old.
fn age(directory: &Path) {
    for network in fs::read_dir(directory).unwrap() {
        for file in fs::read_dir(network.unwrap().path()).unwrap() {
            let file = File::open(file.unwrap().path()).unwrap();
            let hour_ago = SystemTime::now() - Duration::from_hours(1);
            file.set_modified(hour_ago).unwrap();
        }
    }
}

/// Creates an old lease of the network `pods`, of a container that never existed here.
fn lease_of(host: &Host, container: &str, address: &str) {
    let pods = host.lease_dir().join("pods");
    fs::create_dir_all(&pods).unwrap();
    let new = pods.join("new");
    fs::write(&new, format!("{container}\r\neth0")).unwrap();
    let hour_ago = SystemTime::now() - Duration::from_hours(1);
    File::open(&new).unwrap().set_modified(hour_ago).unwrap();
    fs::rename(new, pods.join(address)).unwrap();
}

fn stale_lease(host: &Host) {
    lease_of(host, "gone", STALE);
}

const STALE: &str = "10.1.0.200";

fn has_stale_lease(host: &Host) -> bool {
    host.leases("pods").contains_key(STALE)
}

/// Runs ADD with a cache where the agent does not look.
fn add_by_multus(tool: &Tool<'_>, pod: &Sandbox) {
    let add = tool.on("add", "pods", pod);
    add.env("CNI_CACHE_DIR", "/var/lib/cni/multus").ok();
}

/// Returns a run of the network's first plugin.
fn bridge(host: &Host) -> Invocation {
    let list = fs::read(host.dir().join("net.d/pods.conflist")).unwrap();
    let list: Value = serde_json::from_slice(&list).unwrap();
    let mut config = list["plugins"][0].clone();
    config["name"] = list["name"].clone();
    config["cniVersion"] = list["cniVersion"].clone();
    host.plugin("bridge").config(&config)
}

/// Returns the network `pods` with a live pod, so that links show what lives.
fn with_a_pod(host: &Host) -> (Tool<'_>, Sandbox) {
    let tool = host.pods();
    let pod = host.sandbox("live");
    tool.add("pods", &pod, &[]);
    (tool, pod)
}

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
    // Multus caches results where the agent does not look.
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
            stale_lease(&host);
            agent.signal(Signal::SIGHUP);
        }
        pods.join().unwrap();
    });
    assert!(cri.lists() > 20, "only {} rounds ran", cri.lists());
    let log = agent.log();
    assert!(log.contains("DEL container gone"), "{log}");
    assert!(!log.contains("DEL container pod"), "{log}");
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
    assert!(agent.end() < Duration::from_secs(1));
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
    tool.configure("pods", &[json!({"type": "macvlan", "ipam": ipam})]);
    host.script("macvlan", "PATH=$CNI_PATH:$PATH exec host-local");
    stale_lease(&host);
    let cri = Cri::serve(&socket(&host));
    let agent = agent(&host);
    round(&agent, &cri);
    round(&agent, &cri);
    assert!(has_stale_lease(&host));
    let log = agent.log();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(
        log.contains("plugin macvlan leaves no link on the host"),
        "{log}"
    );
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
    assert!(first.end() < Duration::from_secs(1));
    cri.behaves(Manner::Hangs);
    let second = agent(&host);
    let lists = cri.lists();
    second.signal(Signal::SIGHUP);
    assert!(eventually(|| cri.lists() > lists));
    assert!(second.end() < Duration::from_secs(1));
}

#[test]
fn wrong_values_are_refused_by_key_and_value() {
    let host = Host::new();
    for (gc, words) in [
        (
            json!({"interval": "10s"}),
            "gc.interval \"10s\": it is shorter than 30s",
        ),
        (
            json!({"runtimeSocket": "cri.sock"}),
            "gc.runtimeSocket \"cri.sock\": ",
        ),
        (json!({"dryRun": 1}), "gc.dryRun 1: "),
        (json!({"every": "5m"}), "unknown field `every`"),
    ] {
        let outcome = Agent::run(&host, &json!({ "gc": gc })).run();
        assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
        assert!(outcome.stderr.contains(words), "{outcome:#?}");
    }
}

#[test]
fn sighup_ends_no_agent_that_collects_nothing() {
    let host = Host::new();
    let agent = Agent::start(&host, &json!({}));
    agent.is_up();
    agent.signal(Signal::SIGHUP);
    assert!(agent.end() < Duration::from_secs(1));
}
