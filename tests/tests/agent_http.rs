//! cni-agent, parts `metrics` and `uplink`: what HTTP clients see.

use std::collections::VecDeque;
use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Agent, DEADLINE, Host, Place as _, eventually, http};

/// More than an answer at once takes, and less than one that waits for a scrape, which ends after
/// eight seconds at the earliest.
const PROMPT: Duration = Duration::from_secs(4);

fn is_served(path: &str) -> bool {
    http::get(9799, path).is_ok()
}

/// Starts an agent with these sections, and waits for its server.
#[track_caller]
fn agent(host: &Host, sections: &Value) -> Agent {
    let agent = Agent::start(host, sections);
    assert!(eventually(|| is_served("/healthz")), "{}", agent.log());
    agent
}

#[test]
fn metrics_are_open_metrics_and_health_is_ok() {
    let host = Host::new();
    let _agent = agent(&host, &json!({"metrics": {}, "repair": {}}));
    let answer = http::get(9799, "/metrics").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains(
            "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
        )
    );
    assert!(answer.contains("# TYPE cni_agent_repair_reloads counter\n"));
    assert!(answer.ends_with("# EOF\n"));
    let answer = http::get(9799, "/healthz").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok\n"));
    for path in ["/", "/metrics/..", "/%00"] {
        let answer = http::get(9799, path).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
}

#[test]
fn a_failing_part_is_named_with_its_reason() {
    let host = Host::new();
    let tool = host.pods();
    tool.add("pods", &host.sandbox("a"), &[]);
    let results = tool.results();
    let entry = fs::read_dir(&results)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = fs::read_to_string(&entry).unwrap();
    fs::write(&entry, text.replace("10.1.0.2/24", "x")).unwrap();
    let _agent = agent(&host, &json!({"metrics": {}, "repair": {}}));
    let is_failing = || {
        http::get(9799, "/healthz")
            .unwrap()
            .starts_with("HTTP/1.1 503")
    };
    assert!(eventually(is_failing));
    let answer = http::get(9799, "/healthz").unwrap();
    let reason =
        "\r\n\r\nrepair: attachments that RELOAD could not restore: 1; the first is container";
    assert!(answer.contains(reason), "{answer}");
}

#[test]
fn slow_and_many_clients_delay_others_by_seconds_at_most() {
    let host = Host::new();
    let agent = agent(&host, &json!({"metrics": {}}));
    let slow = || {
        let mut client = TcpStream::connect("127.0.0.1:9799").unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\nHo").unwrap();
        client
    };
    let clients: Vec<_> = (0..200).map(|_| slow()).collect();
    let start = Instant::now();
    assert!(eventually(|| is_served("/healthz")));
    assert!(start.elapsed() < Duration::from_secs(30));
    drop(clients);
    for _ in 0..300 {
        assert!(http::get(9799, "/metrics").unwrap().ends_with("# EOF\n"));
    }
    assert!(agent.peak() < 60 << 10, "{} KiB", agent.peak());
    agent.end();
}

/// Fails unless a probe gets its answer each time, and does not wait for a scrape.
#[track_caller]
fn expect_health() {
    for _ in 0..20 {
        let start = Instant::now();
        let answer = http::get(9799, "/healthz").unwrap();
        assert!(answer.starts_with("HTTP/1.1 "), "{answer:?}");
        assert!(start.elapsed() < PROMPT, "{start:?}");
    }
}

#[test]
fn slow_scrapers_delay_no_probe_of_the_health() {
    let host = Host::new();
    // With a hundred networks, the answer of a scrape exceeds these buffers.
    let tool = host.tool();
    for number in 0..100 {
        let plugins = [host.bridge_v4().config().clone()];
        tool.configure(&format!("network-{number}"), &plugins);
    }
    host.set_sysctl("net/ipv4/tcp_wmem", "4096 4096 4096");
    host.set_sysctl("net/ipv4/tcp_rmem", "4096 4096 4096");
    let sections = json!({"metrics": {}, "repair": {}, "gc": {}, "uplink": {}});
    let _agent = agent(&host, &sections);
    let slow = || {
        let mut client = TcpStream::connect("127.0.0.1:9799").unwrap();
        client
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
            .unwrap();
        client
    };
    let mut slow: Vec<_> = (0..40).map(|_| slow()).collect();
    expect_health();
    // The first ones have a place, and get their text as soon as they read it.
    let mut text = String::new();
    slow[0].read_to_string(&mut text).unwrap();
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn silent_clients_delay_no_probe_of_the_health() {
    let host = Host::new();
    let agent = agent(&host, &json!({"metrics": {}}));
    let connect = || TcpStream::connect("127.0.0.1:9799").unwrap();
    let few: Vec<_> = (0..40).map(|_| connect()).collect();
    expect_health();
    // More and more connections, of which the server closes the oldest.
    let (mut silent, mut prompt) = (VecDeque::from(few), 0);
    for _ in 0..20 {
        silent.extend((0..100).map(|_| connect()));
        let start = Instant::now();
        assert!(http::get(9799, "/healthz").unwrap().ends_with("ok\n"));
        prompt += usize::from(start.elapsed() < Duration::from_secs(1));
        silent.drain(..silent.len().saturating_sub(500));
    }
    // A probe that waited for a client would need two seconds in every round.
    assert!(prompt >= 10, "{prompt} of 20");
    assert!(agent.peak() < 60 << 10, "{} KiB", agent.peak());
}

#[test]
fn clients_that_send_garbage_or_vanish_harm_no_other_one() {
    let host = Host::new();
    let agent = agent(&host, &json!({"metrics": {}}));
    let requests: [&[u8]; 6] = [
        &[0xff; 16_000],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET http://other/metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n",
    ];
    for _ in 0..20 {
        for request in requests {
            let mut client = TcpStream::connect("127.0.0.1:9799").unwrap();
            // The server may close the connection before all is sent.
            drop(client.write_all(request));
        }
    }
    expect_health();
    assert!(http::get(9799, "/metrics").unwrap().ends_with("# EOF\n"));
    assert!(agent.peak() < 60 << 10, "{} KiB", agent.peak());
    agent.end();
}

#[test]
fn large_headers_are_refused() {
    let host = Host::new();
    let agent = agent(&host, &json!({"metrics": {}}));
    for _ in 0..20 {
        let mut client = TcpStream::connect("127.0.0.1:9799").unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        // The server closes the connection early.
        let line = format!("X: {}\r\n", "x".repeat(4000));
        while client.write_all(line.as_bytes()).is_ok() {}
        client.read_to_string(&mut String::new()).ok();
    }
    assert!(is_served("/healthz"));
    assert!(agent.peak() < 60 << 10, "{} KiB", agent.peak());
}

#[test]
fn a_unix_socket_is_private_and_replaces_only_a_stale_one() {
    let host = Host::new();
    let socket = host.dir().join("agent.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let sections = json!({"metrics": {"listen": format!("unix:{}", socket.display())}});
    let first = Agent::start(&host, &sections);
    let is_served = || http::get_by(&socket, "/healthz").is_ok_and(|it| it.ends_with("ok\n"));
    assert!(eventually(is_served), "{}", first.log());
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = Agent::run(&host, &sections);
    let second = thread::scope(|scope| {
        let second = scope.spawn(|| second.under(&["timeout", "1"].map(str::to_owned)).run());
        second.join().unwrap()
    });
    assert!(
        second.stderr.contains("another process listens on"),
        "{second:#?}"
    );
    assert!(is_served());
    first.end();
    assert!(!socket.exists());
    let replaced = Agent::start(&host, &sections);
    assert!(eventually(is_served), "{}", replaced.log());
    fs::remove_file(&socket).unwrap();
    let successor = Agent::start(&host, &sections);
    assert!(eventually(is_served), "{}", successor.log());
    replaced.end();
    assert!(is_served(), "the socket belongs to the successor");
    successor.end();
    assert!(!socket.exists());
    fs::write(&socket, "").unwrap();
    let third = Agent::start(&host, &sections);
    third.says("agent.sock exists and is no socket");
    assert_eq!(fs::read(&socket).unwrap(), b"");
}

#[test]
fn other_hosts_reach_the_server_only_if_that_is_configured() {
    let host = Host::new();
    for (listen, words) in [
        (
            "0.0.0.0:9799",
            "metrics.listen: other hosts can reach 0.0.0.0:9799",
        ),
        ("[::]:9799", "set metrics.remote to true"),
        (
            "localhost:9799",
            "metrics.listen: \"localhost:9799\" is neither",
        ),
        (
            "unix:run",
            "metrics.listen: \"unix:run\" is no absolute path",
        ),
    ] {
        let refused = Agent::run(&host, &json!({"metrics": {"listen": listen}})).run();
        assert!(!refused.status.success());
        assert!(refused.stderr.contains(words), "{refused:#?}");
    }
    let sections = json!({"metrics": {"listen": "0.0.0.0:9799", "remote": true}});
    agent(&host, &sections);
}

#[test]
fn a_new_mtu_of_the_uplink_is_reported_with_the_pods_that_lack_it() {
    let host = Host::new();
    let _outside = host.outside();
    host.ip("route add default via 192.0.2.2");
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &[]);
    let agent = agent(&host, &json!({"metrics": {}, "uplink": {}}));
    let shows = |series: &str, wanted| {
        let value = || http::value(&http::get(9799, "/metrics").unwrap(), series);
        assert!(eventually(|| value() == wanted), "{series}: {:?}", value());
    };
    shows("cni_agent_uplink_mtu_bytes{link=\"uplink\"}", Some(1500));
    shows("cni_agent_pods_with_other_mtu{network=\"pods\"}", None);
    host.ip("link set uplink mtu 1400");
    agent.says("uplink: the MTU of uplink is 1400, not 1500");
    agent.says("uplink: 1 pods of network pods have another MTU than a new pod would get");
    shows("cni_agent_uplink_mtu_bytes{link=\"uplink\"}", Some(1400));
    shows("cni_agent_pods_with_other_mtu{network=\"pods\"}", Some(1));
    host.ip("address add 192.0.2.9/24 dev uplink");
    agent.says("uplink: the addresses of uplink are 192.0.2.1, 192.0.2.9, not 192.0.2.1");
    host.ip("link set uplink mtu 1500");
    shows("cni_agent_pods_with_other_mtu{network=\"pods\"}", None);
    host.ip("route delete default");
    agent.says("uplink: uplink has no default route");
}

#[test]
fn readings_of_the_uplink_that_fail_leave_no_thread() {
    let host = Host::new();
    let _outside = host.outside();
    host.ip("route add default via 192.0.2.2");
    let tool = host.pods();
    tool.add("pods", &host.sandbox("a"), &[]);
    let permit = |mode| fs::set_permissions(tool.results(), Permissions::from_mode(mode)).unwrap();
    permit(0o000);
    // The agent has no capability to read the directory nevertheless.
    let agent = agent(&host, &json!({"metrics": {}, "uplink": {}}));
    agent.says("uplink: read ");
    let tasks = format!("/proc/{}/task", agent.pid());
    let threads = || fs::read_dir(&tasks).unwrap().count();
    // One thread listens, one reads every five seconds, one has the event loop, one waits for
    // signals, and two write the log.
    let start = Instant::now();
    while start.elapsed() < 2 * DEADLINE {
        assert!(threads() <= 6, "{}", threads());
    }
    let mtu = || {
        let answer = http::get(9799, "/metrics").unwrap();
        http::value(&answer, "cni_agent_uplink_mtu_bytes{link=\"uplink\"}")
    };
    assert_eq!(mtu(), None, "what is unknown is absent");
    permit(0o700);
    agent.says("uplink: works again");
    assert!(eventually(|| mtu() == Some(1500)), "{}", agent.log());
}
