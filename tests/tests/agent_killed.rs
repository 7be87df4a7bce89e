//! cni-agent is killed together with the plugins that it called, as a container is.

use std::fs::{self, File};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use serde_json::json;
use tests::leaks::age;
use tests::repair::{flush, pass, restored, rules};
use tests::traffic::{tcp, tcp_by_port};
use tests::{Agent, Host, Place as _, Tool, eventually};

/// Moments per test, spread over the time that the work takes.
const MOMENTS: u32 = 25;

#[test]
fn the_next_start_completes_a_repair_that_was_killed() {
    let host = Host::new();
    let outside = host.outside();
    let pods = ["a", "b", "c"].map(|name| host.sandbox(name));
    let tool = host.pods();
    for (pod, port) in pods.iter().zip(8080..) {
        let ports = [
            format!("{port}:80"),
            format!("127.0.0.1:{}:80", port + 1_000),
        ];
        tool.add("pods", pod, &[&ports[0], &ports[1]]);
    }
    let before = host.snapshot();
    let wanted = rules(&host);
    let repair = || {
        flush(&host);
        Agent::contain(&host, &json!({"repair": {}}))
    };
    let agent = repair();
    let time = restored(&host, &wanted);
    agent.kill(&host);
    for moment in 0..MOMENTS {
        let killed = repair();
        pass(time * moment / MOMENTS);
        killed.kill(&host);
        let next = Agent::contain(&host, &json!({"repair": {}}));
        next.says("reloaded: 3 (pods 3); sandbox gone: 0;");
        restored(&host, &wanted);
        assert!(!next.log().contains("could not restore"), "{}", next.log());
        next.kill(&host);
    }
    // It guards 127.0.0.0/8, too.
    let last = Agent::start(&host, &json!({"repair": {}}));
    last.says("reloaded: 3 (pods 3)");
    for (pod, port) in pods.iter().zip(8080..) {
        assert!(tcp_by_port(&outside, &format!("192.0.2.1:{port}"), (pod, 80)).is_some());
        let source = tcp(pod, &outside, "192.0.2.2");
        assert_eq!(source, Some("192.0.2.1".parse().unwrap()));
        tool.on("check", "pods", pod).ok();
    }
    last.end();
    host.snapshot().assert_same_as(&before);
}

/// Attaches pods and ends their sandboxes without a DEL, an hour ago.
fn leave_pods(host: &Host, tool: &Tool<'_>, moment: u32) {
    for number in 0..3 {
        let pod = host.sandbox(&format!("stale{moment}-{number}"));
        tool.add("pods", &pod, &[&format!("{}:80", 9_000 + number)]);
        host.end(&pod);
    }
    age(&host.lease_dir());
    for file in fs::read_dir(tool.results()).unwrap() {
        let file = File::open(file.unwrap().path()).unwrap();
        let hour_ago = SystemTime::now() - Duration::from_hours(1);
        file.set_modified(hour_ago).unwrap();
    }
}

#[test]
fn the_next_start_completes_a_collection_that_was_killed() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &["8080:80"]);
    let before = host.snapshot();
    let collect = || {
        let agent = Agent::contain(&host, &json!({"gc": {"runtimeSocket": null}}));
        agent.is_up();
        agent.signal(Signal::SIGHUP);
        agent
    };
    let is_clean = || host.snapshot().differences(&before).is_empty();
    leave_pods(&host, &tool, MOMENTS);
    let start = Instant::now();
    let agent = collect();
    assert!(eventually(is_clean), "{}", agent.log());
    let time = start.elapsed();
    agent.kill(&host);
    for moment in 0..MOMENTS {
        leave_pods(&host, &tool, moment);
        let killed = collect();
        pass(time * moment / MOMENTS);
        killed.kill(&host);
        let next = collect();
        let left = || host.snapshot().differences(&before);
        assert!(eventually(is_clean), "{:#?} {}", left(), next.log());
        next.kill(&host);
        assert!(a.pings("10.1.0.1"));
    }
    assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some());
    tool.on("check", "pods", &a).ok();
}
