//! `cni-agent` and a kubelet, which the test plays, restart, fail and misbehave.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kubelet::device_plugin::{AllocateRequest, ContainerAllocateRequest, Empty};
use nix::sys::signal::Signal;
use serde_json::json;
use tests::devices::{EGRESS, INGRESS, TUN, node, plugins, refused, root, sockets, three, tun};
use tests::{Agent, Host, Kubelet, Manner, PodResources, eventually};

#[test]
fn no_allocation_is_lost_by_fifty_restarts_in_any_order() {
    let host = node();
    let config = three(&host);
    let mut kubelet = Kubelet::start(&root(&host));
    let mut agent = Agent::start(&host, &config);
    let mut slowest = Duration::ZERO;
    for round in 0..50 {
        let start = Instant::now();
        kubelet.wait_for(EGRESS, 20);
        kubelet.wait_for(INGRESS, 1_000);
        kubelet.wait_for(TUN, 3);
        slowest = slowest.max(start.elapsed());
        if round < 10 {
            kubelet.allocate(&format!("pod{round}"), EGRESS, 2).unwrap();
        }
        let allocated = kubelet.allocated();
        let ids: Vec<_> = allocated.values().flatten().collect();
        let listed = kubelet.devices(EGRESS);
        assert!(ids.iter().all(|it| listed.contains_key(*it)), "{ids:?}");
        assert_eq!(ids.len(), 2 * (round + 1).min(10));
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        (kubelet, agent) = restarted(&host, round, (kubelet, agent));
    }
    println!("slowest: {slowest:?}");
    assert!(slowest < PROMPT, "{slowest:?}");
}

#[test]
fn devices_are_listed_again_at_once_after_the_kubelet_removed_all_sockets() {
    let host = node();
    let config = three(&host);
    let mut kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &config);
    kubelet.wait_for(INGRESS, 1_000);
    for _ in 0..10 {
        drop(kubelet);
        kubelet = Kubelet::start(&root(&host));
        let needed = kubelet.wait_for(TUN, 3) + kubelet.wait_for(INGRESS, 1_000);
        assert!(needed < PROMPT, "{needed:?}");
        assert_eq!(kubelet.registrations().len(), 3, "one registration each");
    }
    assert!(!agent.log().contains("refused"), "{}", agent.log());
    // Someone removes our sockets, and the kubelet keeps its connections.
    for name in sockets(&host) {
        if name != "kubelet.sock" {
            fs::remove_file(plugins(&host).join(name)).unwrap();
        }
    }
    assert!(eventually(|| sockets(&host).len() == 4));
    // Others create a file with the name of the kubelet's directory.
    let of_others = root(&host).join("device-plugins/device-plugins");
    for _ in 0..5 {
        fs::write(&of_others, "").unwrap();
        fs::remove_file(&of_others).unwrap();
        kubelet.allocate("pod", INGRESS, 1).unwrap();
    }
    assert_eq!(kubelet.registrations().len(), 3);
    drop(agent);
}

#[test]
fn the_agent_waits_for_the_kubelets_directory_and_follows_it() {
    let host = node();
    let agent = Agent::start(&host, &tun(&host));
    agent.says("the kubelet does not run");
    let kubelet = Kubelet::start(&root(&host));
    assert!(kubelet.wait_for(TUN, 3) < PROMPT);
    for _ in 0..5 {
        drop(fs::remove_dir_all(root(&host)));
        let kubelet = Kubelet::start(&root(&host));
        assert!(kubelet.wait_for(TUN, 3) < PROMPT);
    }
    drop(kubelet);
    fs::rename(root(&host), host.dir().join("elsewhere")).unwrap();
    let kubelet = Kubelet::start(&root(&host));
    kubelet.wait_for(TUN, 3);
    drop(agent);
}

#[test]
fn a_file_system_that_is_mounted_over_the_kubelets_directory_is_noticed() {
    let host = node();
    fs::create_dir_all(plugins(&host)).unwrap();
    let agent = Agent::start(&host, &tun(&host));
    agent.says("the kubelet does not run");
    host.hide(root(&host));
    let kubelet = Kubelet::start(&root(&host));
    assert!(kubelet.wait_for(TUN, 3) < PROMPT);
    // Mounts elsewhere change nothing.
    host.hide("/mnt");
    drop(kubelet);
    let kubelet = Kubelet::start(&root(&host));
    assert!(kubelet.wait_for(TUN, 3) < PROMPT);
    assert_eq!(kubelet.registrations().len(), 1);
}

#[test]
fn the_socket_of_a_kubelet_that_ended_is_reported_as_such() {
    let host = node();
    drop(Kubelet::start(&root(&host)));
    drop(PodResources::serve(&root(&host)));
    let agent = Agent::start(&host, &tun(&host));
    agent.says("devices: the kubelet does not run: nothing listens on /run/test/kubelet/");
    let kubelet = Kubelet::start(&root(&host));
    assert!(kubelet.wait_for(TUN, 3) < PROMPT);
    assert!(!agent.log().contains("refused"), "{}", agent.log());
}

#[test]
fn a_lack_of_inotify_instances_is_reported_with_the_sysctl() {
    let host = node();
    let script = "echo 0 >/proc/sys/user/max_inotify_instances; exec \"$@\"";
    let unshare = [
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        script,
        "sh",
    ];
    let run = Agent::run(&host, &tun(&host)).under(&unshare.map(str::to_owned));
    let agent = Agent::spawn(&host, &run);
    agent.says("raise the sysctl fs.inotify.max_user_instances");
}

#[test]
fn a_second_agent_is_refused_and_changes_nothing() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &tun(&host));
    kubelet.wait_for(TUN, 3);
    let before = sockets(&host);
    let outcome = refused(&host, &three(&host));
    let text = "another cni-agent runs on this node: it has the lock";
    assert!(outcome.stderr.contains(text), "{outcome:#?}");
    assert_eq!(sockets(&host), before);
    kubelet.allocate("pod", TUN, 1).unwrap();
    // Only root can open the lock.
    let lock = fs::metadata(plugins(&host).join("cni-agent.lock")).unwrap();
    assert_eq!(lock.permissions().mode() & 0o777, 0o700);
    drop(agent);
}

#[test]
fn sockets_of_a_killed_agent_are_replaced_and_those_of_others_stay() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &three(&host));
    kubelet.wait_for(INGRESS, 1_000);
    kubelet.wait_for(EGRESS, 20);
    let other = UnixListener::bind(plugins(&host).join("other.sock")).unwrap();
    agent.signal(Signal::SIGKILL);
    drop(agent);
    assert!(
        sockets(&host)
            .iter()
            .any(|it| it == "cni-agent-egress-100mbit.sock")
    );
    let agent = Agent::start(&host, &tun(&host));
    agent.says("the kubelet reads example.org/tun");
    assert_eq!(
        sockets(&host),
        ["cni-agent-tun.sock", "kubelet.sock", "other.sock"]
    );
    agent.end();
    let served = UnixListener::bind(plugins(&host).join("cni-agent-tun.sock")).unwrap();
    let outcome = refused(&host, &tun(&host));
    assert!(
        outcome.stderr.contains("another process serves"),
        "{outcome:#?}"
    );
    drop((other, served));
}

#[test]
fn the_agent_outlives_a_kubelet_that_refuses_or_forgets() {
    let host = node();
    let kubelet = Kubelet::start_as(&root(&host), Manner::Refuses);
    let agent = Agent::start(&host, &tun(&host));
    agent.says("this kubelet refuses");
    drop(kubelet);
    let kubelet = Kubelet::start_as(&root(&host), Manner::Forgets);
    agent.says("the kubelet accepts, but does not read the devices");
    assert!(kubelet.registrations().len() < 3);
    drop(kubelet);
    let kubelet = Kubelet::start(&root(&host));
    assert!(kubelet.wait_for(TUN, 3) < PROMPT);
    agent.says("devices: works again");
    agent.end();
}

#[test]
fn the_agent_outlives_a_kubelet_that_hangs_or_answers_garbage() {
    let host = node();
    fs::create_dir_all(plugins(&host)).unwrap();
    let socket = plugins(&host).join("kubelet.sock");
    let hanging = UnixListener::bind(&socket).unwrap();
    let agent = Agent::start(&host, &tun(&host));
    agent.says("the kubelet does not answer");
    drop(hanging);
    fs::remove_file(&socket).unwrap();
    let garbage = UnixListener::bind(&socket).unwrap();
    let calls = answer_garbage(garbage, Duration::from_secs(3));
    assert!((2..15).contains(&calls), "{calls} attempts");
    let kubelet = Kubelet::start(&root(&host));
    assert!(kubelet.wait_for(TUN, 3) < PROMPT);
    agent.end();
}

/// A node with a kubelet that lists 9,000 devices of [`MANY`].
fn many(host: &Host) -> (Kubelet, Agent) {
    let kubelet = Kubelet::start(&root(host));
    let mut config = tun(host);
    config["devices"]["egress"] = json!({"unitMbit": 1, "capacityMbit": 9_000});
    let agent = Agent::start(host, &config);
    kubelet.wait_for(MANY, 9_000);
    kubelet.wait_for(TUN, 3);
    (kubelet, agent)
}

/// Fails if the agent needed much memory or no longer works.
#[track_caller]
fn expect_intact(kubelet: &Kubelet, agent: Agent) {
    kubelet.allocate("pod", MANY, 9_000).unwrap();
    kubelet.allocate("pod", TUN, 1).unwrap();
    println!("peak: {} KiB", agent.peak());
    assert!(agent.peak() < 60_000, "{} KiB", agent.peak());
    agent.end();
}

const MANY: &str = "example.org/egress-1mbit";

/// An agent that misses an event tries again after up to five seconds.
const PROMPT: Duration = Duration::from_secs(3);

#[test]
fn a_flood_of_streams_costs_little_memory() {
    let host = node();
    let (kubelet, agent) = many(&host);
    // The kubelet has one connection and one stream already.
    let mut flood: Vec<_> = (0..6).map(|_| kubelet.plugin(MANY)).collect();
    let (mut open, mut refusals) = (Vec::new(), 0);
    for plugin in &mut flood {
        for _ in 0..4 {
            match plugin.run(async |it| it.list_and_watch(Empty {}).await) {
                Ok(lists) => open.push(lists),
                Err(_) => refusals += 1,
            }
        }
    }
    assert_eq!((open.len(), refusals), (3, 21));
    drop((open, flood));
    expect_intact(&kubelet, agent);
}

#[test]
fn a_flood_of_requests_costs_little_memory() {
    let host = node();
    let (kubelet, agent) = many(&host);
    let ids: Vec<_> = kubelet.devices(MANY).into_keys().collect();
    for _ in 0..30 {
        kubelet.allocate_these(MANY, &ids).unwrap();
    }
    let mut plugin = kubelet.plugin(MANY);
    for (count, is_ok) in [
        (1_000, true),
        (1_001, false),
        (200_000, false),
        (400_000, false),
    ] {
        let container_requests = vec![ContainerAllocateRequest::default(); count];
        let request = AllocateRequest { container_requests };
        let answer = plugin.run(async |it| it.allocate(request).await);
        assert_eq!(answer.is_ok(), is_ok, "{count}");
    }
    for _ in 0..2_000 {
        let answer = plugin.run(async |it| it.get_device_plugin_options(Empty {}).await);
        answer.unwrap();
    }
    drop(plugin);
    expect_intact(&kubelet, agent);
}

#[test]
fn sigterm_removes_the_sockets_whatever_the_kubelet_does() {
    let host = node();
    for (manner, text) in [
        (Manner::Refuses, "this kubelet refuses"),
        (Manner::Forgets, "does not read the devices"),
        (Manner::Usual, "the kubelet reads example.org/tun"),
    ] {
        let kubelet = Kubelet::start_as(&root(&host), manner);
        for _ in 0..3 {
            let agent = Agent::start(&host, &three(&host));
            agent.says(text);
            agent.end();
            assert_eq!(sockets(&host), ["kubelet.sock"], "{manner:?}");
        }
        drop(kubelet);
    }
}

#[test]
fn sigterm_removes_the_sockets() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &three(&host));
    kubelet.wait_for(INGRESS, 1_000);
    kubelet.wait_for(EGRESS, 20);
    kubelet.wait_for(TUN, 3);
    agent.end();
    assert_eq!(sockets(&host), ["kubelet.sock"]);
    kubelet.wait_for(INGRESS, 0);
    assert_eq!(kubelet.devices(INGRESS).len(), 1_000);
}

/// Restarts the kubelet, the agent or both. A killed one leaves its sockets.
fn restarted(host: &Host, round: usize, (kubelet, agent): (Kubelet, Agent)) -> (Kubelet, Agent) {
    let kubelet_anew = || Kubelet::start(&root(host));
    let agent_anew = || Agent::start(host, &three(host));
    match round % 5 {
        0 => {
            drop(kubelet);
            (kubelet_anew(), agent)
        }
        1 => {
            drop(agent);
            for resource in [INGRESS, EGRESS, TUN] {
                kubelet.wait_for(resource, 0);
            }
            (kubelet, agent_anew())
        }
        2 => {
            drop((kubelet, agent));
            let agent = agent_anew();
            (kubelet_anew(), agent)
        }
        3 => {
            agent.end();
            drop(kubelet);
            (kubelet_anew(), agent_anew())
        }
        _ => {
            drop(kubelet);
            let kubelet = kubelet_anew();
            agent.end();
            (kubelet, agent_anew())
        }
    }
}

/// Answers each connection by bytes that are no HTTP for so long, and returns their number.
fn answer_garbage(socket: UnixListener, time: Duration) -> usize {
    let path = socket
        .local_addr()
        .unwrap()
        .as_pathname()
        .unwrap()
        .to_owned();
    let (attempt, attempts) = mpsc::channel();
    let server = thread::spawn(move || {
        for stream in socket.incoming() {
            drop(stream.unwrap().write_all(&[0xff; 10_000]));
            if attempt.send(()).is_err() {
                break;
            }
        }
    });
    let (end, mut count) = (Instant::now() + time, 0);
    while let Ok(()) = attempts.recv_timeout(end.saturating_duration_since(Instant::now())) {
        count += 1;
    }
    drop(attempts);
    drop(UnixStream::connect(path));
    server.join().unwrap();
    count
}
