//! `cni-agent` outlives peers that hang, flood it or send garbage. The files `agent_kubelet`,
//! `agent_gc_runtimes`, `agent_pod_resources`, `agent_http` and `bandwidth_pod_resources` have the
//! same for other peers.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::net::UnixStream;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::json;
use tests::cri::peer;
use tests::devices::{TUN, node, plugins, root, tun};
use tests::http::metrics;
use tests::{Agent, Host, Kubelet, eventually};

#[test]
fn garbage_and_silence_on_a_plugins_socket_harm_no_other_connection() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &tun(&host));
    kubelet.wait_for(TUN, 3);
    let connect = || UnixStream::connect(plugins(&host).join("cni-agent-tun.sock")).unwrap();
    let silent: Vec<_> = (0..4).map(|_| connect()).collect();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    // A frame of 16 MiB of an unknown type, and headers that refer to no entry of a table.
    let frames: [&[u8]; 2] = [&[0xff; 9], &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0xfe]];
    for _ in 0..20 {
        for bytes in [preface, &[0xff; 10_000], b"GET / HTTP/1.1\r\n\r\n"] {
            drop(connect().write_all(bytes));
        }
        for frame in frames {
            drop(connect().write_all(&[preface, frame].concat()));
        }
    }
    kubelet.allocate("pod", TUN, 1).unwrap();
    assert_eq!(kubelet.registrations().len(), 1, "{}", agent.log());
    drop(silent);
    assert!(agent.peak() < 60 << 10, "{} KiB", agent.peak());
    agent.end();
}

#[test]
fn a_kubelet_that_floods_a_registration_is_left_after_a_time() {
    let host = node();
    let socket = plugins(&host).join("kubelet.sock");
    // HTTP/2 with its settings, and then pings without end in place of an answer.
    peer(&socket, |mut it: UnixStream| {
        let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0], [7; 8].as_slice()].concat();
        let mut written = it.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
        while written.is_ok() {
            written = it.write_all(&ping.repeat(100));
        }
    });
    let agent = Agent::start(&host, &tun(&host));
    agent.says("register example.org/tun at ");
    assert!(agent.peak() < 60 << 10, "{} KiB", agent.peak());
    let kubelet = Kubelet::start(&root(&host));
    kubelet.wait_for(TUN, 3);
    agent.says("devices: works again");
    agent.end();
}

#[test]
fn a_log_that_hangs_floods_or_is_garbage_costs_no_other_metric() {
    let host = Host::new();
    let tool = host.pods();
    let log = host.dir().join("log");
    mkfifo(&log, Mode::from_bits_truncate(0o600)).unwrap();
    let sections = json!({"metrics": {"logFiles": [log]}});
    let agent = Agent::start(&host, &sections);
    let value = |name: &str, labels: &[(&str, &str)]| metrics()?.all(name, labels).pop();
    let unread = || value("cni_unread", &[("part", "log")]);
    assert!(eventually(|| unread() == Some(1)), "{}", agent.log());
    assert_eq!(value("cni_attachments", &[("network", "pods")]), Some(0));
    fs::remove_file(&log).unwrap();
    flood(&log);
    let invalid = || value("cni_log_lines_invalid_total", &[]);
    assert!(eventually(|| invalid() == Some(10_001)), "{:?}", invalid());
    assert_eq!(unread(), Some(0));
    let add = tool.on("add", "pods", &host.sandbox("a"));
    add.env("CNI_LOG_FILE", &log).ok();
    let adds = || value("cni_call_duration_seconds_count", &[("plugin", "bridge")]);
    assert!(eventually(|| adds() == Some(1)), "{}", agent.log());
    fs::remove_file(&log).unwrap();
    let labels = [("network", "pods")];
    assert!(eventually(|| value("cni_attachments", &labels) == Some(1)));
    assert_eq!((adds(), invalid()), (Some(1), Some(10_001)));
    assert!(agent.peak() < 60 << 10, "{} KiB", agent.peak());
    agent.end();
}

/// Writes a log with 200 MiB in a line, and ten thousand other lines that no plugin wrote.
fn flood(log: &std::path::Path) {
    let new = log.with_extension("new");
    let mut file = File::create(&new).unwrap();
    file.set_len(200 << 20).unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(&[b"\n".as_slice(), &b"\x00\xff{\"plugin\":\n".repeat(10_000)].concat())
        .unwrap();
    fs::rename(&new, log).unwrap();
}
