//! cni-agent guards 127.0.0.0/8 in the place of portmap's `IPsec` policies (CVE-2020-8558). Packets of
//! neighbours show each state and each transition.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use tests::intruder::Intruder;
use tests::repair::{GUARD, flush, number, sections};
use tests::{Agent, Host, Place as _, Sandbox, Tool, eventually};

const CLOSED: [bool; 2] = [false; 2];
const OPEN: [bool; 2] = [true; 2];

/// A host with a pod that has a port of 127.0.0.1, and two neighbours on the link: the pod, and a
/// namespace that no plugin has attached.
struct Scene {
    host: Host,
    pod: Sandbox,
    intruders: [Intruder; 2],
}

impl Scene {
    fn new() -> Self {
        let host = Host::new();
        let [pod, stranger] = ["pod", "stranger"].map(|name| host.sandbox(name));
        tool(&host).add("pods", &pod, &["8080:80"]);
        host.ip("link add foreign type veth peer name eth0 netns stranger");
        host.ip("link set foreign master cni1 up");
        stranger.ip("address add 10.1.0.99/24 dev eth0");
        stranger.ip("link set eth0 up");
        let intruders = [&pod, &stranger].map(|it| Intruder::new(it, &host, "10.1.0.1"));
        Self {
            host,
            pod,
            intruders,
        }
    }

    #[track_caller]
    fn expect(&self, arrived: [bool; 2]) {
        for intruder in &self.intruders {
            assert_eq!(intruder.arrives(), arrived, "{:?}", guards(&self.host));
        }
    }

    /// Returns the reason why CHECK fails; empty if it succeeds.
    fn check(&self) -> String {
        tool(&self.host).on("check", "pods", &self.pod).run().stderr
    }
}

fn tool(host: &Host) -> Tool<'_> {
    host.pods()
}

/// Returns the numbers of portmap's policies and of tables of agents.
fn guards(host: &Host) -> (usize, usize) {
    let policies = host.ip("xfrm policy").matches("action block").count();
    let tables = host.run("nft", &["list", "tables"]);
    (policies, tables.matches(GUARD).count())
}

/// Starts an agent, and returns when it guards in the place of the policies.
fn agent(host: &Host, sections: &Value) -> Agent {
    let before = guards(host).1;
    let agent = Agent::start(host, sections);
    let guarded = eventually(|| guards(host) == (0, before + 1));
    assert!(guarded, "{:?}: {}", guards(host), agent.log());
    agent
}

/// Returns an agent's sections with which it guards, and restores no rules.
fn without_repairs(host: &Host) -> Value {
    let file = host.dir().join("no-repair");
    fs::write(&file, "").unwrap();
    json!({"repair": {"unless": file}})
}

#[test]
fn neighbours_stay_out_whatever_happens_to_rules_and_agent() {
    let scene = Scene::new();
    let host = &scene.host;
    let sections = without_repairs(host);
    scene.expect(CLOSED);
    assert_eq!(guards(host), (2, 0));
    let first = agent(host, &sections);
    scene.expect(CLOSED);
    assert_eq!(scene.check(), "");
    flush(host);
    assert_eq!(guards(host), (0, 1));
    scene.expect(CLOSED);
    first.end();
    assert_eq!(guards(host), (2, 0));
    scene.expect(CLOSED);
    // The policies do not hold any more, as after `ip xfrm policy flush`.
    host.ip("xfrm policy flush");
    scene.expect(OPEN);
    let second = agent(host, &sections);
    scene.expect(CLOSED);
    drop(second);
    assert!(eventually(|| guards(host) == (0, 0)));
    scene.expect(OPEN);
    tool(host).run(&["reload"]).ok();
    assert_eq!(guards(host), (2, 0));
    scene.expect(CLOSED);
}

/// Between the death of an agent and the next one, portmap's own rules guard until a flush.
#[test]
fn killed_agent_leaves_the_rules_and_the_next_one_closes_what_was_flushed() {
    let scene = Scene::new();
    let host = &scene.host;
    drop(agent(host, &sections()));
    assert!(eventually(|| guards(host) == (0, 0)));
    scene.expect(CLOSED);
    let missing = scene.check();
    assert!(
        missing.contains("no IPsec policy blocks packets to 127.0.0.0/8"),
        "{missing}"
    );
    let missing = ["no IPsec policy blocks packets", "Only rules keep pods"];
    tool(host).doctor().expect("warning", "localhost", &missing);
    flush(host);
    scene.expect(OPEN);
    let agent = agent(host, &sections());
    scene.expect(CLOSED);
    assert!(eventually(|| scene.check().is_empty()), "{}", agent.log());
    let guarded = ["cni-agent keeps neighbours off 127.0.0.0/8"];
    tool(host).doctor().expect("ok", "localhost", &guarded);
    assert!(eventually(|| number("repair_localhost_guard") == Some(1)));
}

#[test]
fn no_moment_is_without_a_guard_while_agents_come_and_go() {
    let scene = Scene::new();
    let host = &scene.host;
    let sections = without_repairs(host);
    let first = agent(host, &sections);
    flush(host);
    let Scene { intruders, .. } = &scene;
    let (is_over, mut rounds) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        let [one, _] = intruders;
        let knocking = scope.spawn(|| {
            let mut rounds = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(one.arrives(), CLOSED);
                rounds += 1;
            }
            rounds
        });
        let mut last = first;
        for _ in 0..3 {
            // Two agents at the same time, then one after the other.
            let next = agent(host, &sections);
            last.end();
            assert!(eventually(|| guards(host) == (0, 1)), "{}", next.log());
            next.end();
            assert_eq!(guards(host), (2, 0));
            last = agent(host, &sections);
        }
        last.end();
        is_over.store(true, Ordering::Relaxed);
        rounds = knocking.join().unwrap();
    });
    assert!(rounds > 100, "{rounds}");
    host.ip("xfrm policy flush");
    scene.expect(OPEN);
}

#[test]
fn add_beside_the_agent_needs_no_policies_and_its_end_adds_them_if_a_port_needs_them() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let sections = without_repairs(&host);
    agent(&host, &sections).end();
    assert_eq!(guards(&host), (0, 0), "no port needs them");
    let running = agent(&host, &sections);
    tool(&host).add("pods", &a, &["8080:80"]);
    tool(&host).on("check", "pods", &a).ok();
    assert_eq!(guards(&host), (0, 1));
    let intruder = Intruder::new(&a, &host, "10.1.0.1");
    assert_eq!(intruder.arrives(), CLOSED);
    tool(&host).on("del", "pods", &a).ok();
    tool(&host).add("pods", &b, &["8080:80"]);
    running.end();
    assert_eq!(guards(&host), (2, 0));
    tool(&host).on("check", "pods", &b).ok();
}

/// ADD and DEL race with the start and the end of agents.
#[test]
fn ports_of_adds_beside_starts_and_ends_of_agents_are_guarded() {
    let host = Host::new();
    let pods = ["a", "b", "c"].map(|name| host.sandbox(name));
    let sections = without_repairs(&host);
    for round in 0..2 {
        let start_and_end = || {
            let agent = Agent::start(&host, &sections);
            agent.is_up();
            agent.end();
        };
        thread::scope(|scope| {
            let adding = scope.spawn(|| {
                for pod in &pods {
                    tool(&host).add("pods", pod, &[]);
                    let ports = [format!("80{round}0:80")];
                    tool(&host).on("del", "pods", pod).ok();
                    tool(&host).add("pods", pod, &[&ports[0]]);
                    tool(&host).on("del", "pods", pod).ok();
                }
                tool(&host).add("pods", &pods[0], &["8080:80"]);
            });
            while !adding.is_finished() {
                start_and_end();
            }
            adding.join().unwrap();
        });
        start_and_end();
        assert_eq!(guards(&host), (2, 0), "{round}");
        tool(&host).on("check", "pods", &pods[0]).ok();
        tool(&host).on("del", "pods", &pods[0]).ok();
        host.ip("xfrm policy flush");
    }
}

/// nft(8) owns a restored table, and the table ends with it.
#[test]
fn table_in_saved_rules_is_no_guard() {
    let scene = Scene::new();
    let host = &scene.host;
    let running = agent(host, &without_repairs(host));
    let saved = host.dir().join("nftables.conf");
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(
        rules.contains(GUARD) && rules.contains("flags owner"),
        "{rules}"
    );
    fs::write(&saved, &rules).unwrap();
    let restore = || Command::new("nft").arg("-f").arg(&saved).output().unwrap();
    let refused = host.enter(restore);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("Operation not permitted"), "{text}");
    drop(running);
    assert!(eventually(|| guards(host) == (0, 0)));
    assert!(host.enter(restore).status.success());
    assert_eq!(guards(host), (0, 0));
    let mut nft = host.enter(|| {
        let mut nft = Command::new("nft");
        let piped = nft.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null());
        piped.spawn().unwrap()
    });
    let mut typed = nft.stdin.take().unwrap();
    writeln!(typed, "include \"{}\"", saved.display()).unwrap();
    assert!(eventually(|| guards(host) == (0, 1)));
    tool(host).run(&["reload"]).ok();
    assert_eq!(guards(host), (2, 1));
    nft.kill().unwrap();
    nft.wait().unwrap();
    flush(host);
    scene.expect(CLOSED);
}

#[test]
fn agent_with_the_key_leaves_the_policies() {
    let scene = Scene::new();
    let host = &scene.host;
    let sections =
        json!({"repair": {"localhostGuard": false}, "metrics": {"listen": "127.0.0.1:9799"}});
    let agent = Agent::start(host, &sections);
    agent.says("reloaded: ");
    assert_eq!(guards(host), (2, 0));
    assert!(eventually(|| number("repair_localhost_guard") == Some(0)));
    flush(host);
    scene.expect(CLOSED);
    agent.end();
    assert_eq!(guards(host), (2, 0));
}

/// Linux before 5.12 refuses the table. strace refuses the first message of each thread.
#[test]
fn agent_that_the_kernel_refuses_the_table_leaves_the_policies() {
    let scene = Scene::new();
    let host = &scene.host;
    let strace = "strace -D -f -o /dev/null -e signal=none -e trace=sendto \
                  -e inject=sendto:error=EOPNOTSUPP:when=1";
    let strace: Vec<_> = strace.split_whitespace().map(str::to_owned).collect();
    let run = Agent::run(host, &without_repairs(host)).under(&strace);
    let agent = Agent::spawn(host, &run);
    agent.says("the agent cannot guard 127.0.0.0/8, so IPsec policies of portmap guard it");
    assert_eq!(guards(host), (2, 0));
    flush(host);
    scene.expect(CLOSED);
    drop(agent);
    assert_eq!(guards(host), (2, 0));
}
