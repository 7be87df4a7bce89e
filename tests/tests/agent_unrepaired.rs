//! cni-agent, part `repair`: attachments in several caches or in none, and attachments that their
//! containers destroyed.

use std::fs;

use tests::repair::{PERIOD, agent, counts, flush, health, pass, restored, rules, sections};
use tests::traffic::{tcp, tcp_by_port};
use tests::{Agent, Host, Invocation, Place as _, Sandbox, Tool, eventually};

const MULTUS: &str = "/var/lib/cni/multus";

/// Returns ADD or DEL of a runtime with this cache directory. ADD forwards port 8080.
fn by(cache: &str, verb: &str, (tool, pod): (&Tool<'_>, &Sandbox)) -> Invocation {
    let ports = r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}"#;
    let call = tool.on(verb, "pods", pod).env("CAP_ARGS", ports);
    call.env("CNI_CACHE_DIR", cache)
}

/// Returns the container ID that cnitool gives the pod.
fn id(pod: &Sandbox) -> String {
    let results = fs::read_dir("/var/lib/other/results").unwrap();
    let mut files = results.map(|it| it.unwrap());
    let name = |it: fs::DirEntry| {
        let text = fs::read_to_string(it.path()).unwrap();
        let entry: serde_json::Value = serde_json::from_str(&text).unwrap();
        (entry["netns"] == pod.path().to_str().unwrap())
            .then(|| entry["containerId"].as_str().unwrap().to_owned())
    };
    files.find_map(name).unwrap()
}

fn is_forwarded(pod: &Sandbox, outside: &Sandbox, port: u16) -> bool {
    tcp_by_port(outside, &format!("192.0.2.1:{port}"), (pod, 80)).is_some()
}

#[track_caller]
fn is_healthy(agent: &Agent) {
    let is_healthy = eventually(|| health() == "ok\n");
    assert!(is_healthy, "{} {}", health(), agent.log());
}

fn reloads(agent: &Agent) -> usize {
    agent.log().matches("reloaded: ").count()
}

/// Multus also keeps a file of delegates for each container, in another format.
#[test]
fn an_attachment_in_the_cache_of_multus_is_repaired() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let a = host.sandbox("a");
    let tool = host.pods();
    by(MULTUS, "add", (&tool, &a)).ok();
    let delegates = r#"[{"Conf": {"name": "pods", "type": "bridge"}, "ConfListPlugin": false}]"#;
    for file in ["a", "results/a", "results/pods-a-eth0.tmp"] {
        fs::write(format!("{MULTUS}/{file}"), delegates).unwrap();
    }
    let before = rules(&host);
    let agent = agent(&host, &sections());
    for loss in ["flush ruleset", "delete table inet cni-portmap"] {
        host.run("nft", &[loss]);
        restored(&host, &before);
        assert!(is_forwarded(&a, &outside, 8080));
        let source = tcp(&a, &outside, "192.0.2.2");
        assert_eq!(source, Some("192.0.2.1".parse().unwrap()));
        pass(PERIOD);
    }
    is_healthy(&agent);
    counts("repair_unrepaired", 0);
    flush(&host);
    tool.run(&["reload"]).ok();
    assert_eq!(rules(&host), before, "cnitool reads that cache, too");
}

#[test]
fn an_attachment_in_no_cache_is_reported_as_not_repaired() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = host.pods();
    tool.add("pods", &a, &["9090:80"]);
    let agent = agent(&host, &sections());
    // The agent hears of this pod while it runs.
    by("/var/lib/other", "add", (&tool, &b)).ok();
    for loss in [
        "delete element inet cni-portmap ports4 { tcp . 8080 }",
        "flush ruleset",
    ] {
        host.run("nft", &[loss]);
        agent.says(&format!(
            "{} interface eth0 on network pods: it has lost",
            id(&b)
        ));
        let has_port = || rules(&host).concat().contains("\"tcp\",9090");
        assert!(eventually(has_port), "{}", agent.log());
        assert!(is_forwarded(&a, &outside, 9090));
        assert!(eventually(|| health().contains(&id(&b))), "{}", health());
        counts("repair_unrepaired", 1);
        assert!(!is_forwarded(&b, &outside, 8080));
    }
    by("/var/lib/other", "del", (&tool, &b)).ok();
    is_healthy(&agent);
    counts("repair_unrepaired", 0);
}

#[test]
fn a_pod_that_deletes_its_interface_is_left_out_of_repairs() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = host.pods();
    tool.add("pods", &a, &["8080:80"]);
    tool.add("pods", &b, &["9090:80"]);
    let agent = agent(&host, &sections());
    a.ip("link delete eth0");
    flush(&host);
    agent.says("interface eth0 on network pods: its sandbox has no eth0 any more");
    counts("repair_left_out", 1);
    is_healthy(&agent);
    pass(PERIOD);
    assert!(is_forwarded(&b, &outside, 9090));
    let wanted = rules(&host);
    let before = reloads(&agent);
    host.run(
        "nft",
        &["delete element inet cni-portmap ports4 { tcp . 9090 }"],
    );
    restored(&host, &wanted);
    assert!(is_forwarded(&b, &outside, 9090));
    assert!(eventually(|| reloads(&agent) == before + 1));
    let log = agent.log();
    let last = log.lines().rfind(|it| it.contains("reloaded: ")).unwrap();
    let expected = "reloaded: 1 (pods 1); sandbox gone: 0;";
    assert!(last.contains(expected), "{log}");
    // The agent looks at the pod again meanwhile.
    pass(5 * PERIOD);
    let log = agent.log();
    assert_eq!(reloads(&agent), before + 1, "{log}");
    assert_eq!(log.matches("left out").count(), 1, "{log}");
    assert_eq!(health(), "ok\n");
    counts("repair_failures_total", 0);
    tool.on("del", "pods", &a).ok();
    counts("repair_left_out", 0);
}

/// gVisor deletes the addresses of the interface, because it has a network stack of its own.
#[test]
fn a_pod_without_addresses_in_the_kernel_is_repaired() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &["8080:80"]);
    let before = rules(&host);
    let agent = agent(&host, &sections());
    a.ip("address flush dev eth0");
    flush(&host);
    restored(&host, &before);
    counts("repair_left_out", 0);
    is_healthy(&agent);
}

/// With another link of that name, a pod looks as if it had everything.
#[test]
fn a_pod_that_replaces_its_interface_does_not_make_the_node_unhealthy() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &["8080:80"]);
    let addresses = a.addresses("eth0");
    let agent = agent(&host, &sections());
    a.ip("link delete eth0");
    a.ip("link add eth0 type veth peer name other");
    a.ip(&format!("address add {} dev eth0", addresses[0]));
    flush(&host);
    agent.says("eth0 in its sandbox is not the link that ADD made");
    counts("repair_left_out", 1);
    is_healthy(&agent);
}

/// Root in a pod can rename its interface. RELOAD identifies it by the host's end of the pair.
#[test]
fn a_pod_that_renames_its_interface_is_repaired_after_each_flush() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &["8080:80"]);
    let before = rules(&host);
    assert!(before.iter().any(|it| it.contains("\"elem\"")));
    let agent = agent(&host, &sections());
    a.ip("link set eth0 down");
    a.ip("link set eth0 name renamed");
    a.ip("link set renamed up");
    for _ in 0..2 {
        flush(&host);
        restored(&host, &before);
        counts("repair_left_out", 0);
        is_healthy(&agent);
        pass(PERIOD);
    }
}
