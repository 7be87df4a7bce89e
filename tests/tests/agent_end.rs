//! The end of cni-agent, and its log, while something blocks it.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::cri::Cri;
use tests::http::metrics;
use tests::leaks::{
    age, agent, agent_with, has_stale_lease, round, socket, stale_lease, with_a_pod,
};
use tests::{Agent, Host, ended, eventually};

/// Starts an agent whose standard error is a full pipe. Returns the pipe's read end.
fn with_full_log(host: &Host, sections: &Value) -> (Child, io::PipeReader) {
    let (reader, writer) = io::pipe().unwrap();
    let filler = File::from(std::os::fd::OwnedFd::from(writer.try_clone().unwrap()));
    let size = nix::fcntl::fcntl(&filler, nix::fcntl::F_GETPIPE_SZ).unwrap();
    let full = vec![b'\n'; size.try_into().unwrap()];
    (&filler).write_all(&full).unwrap();
    let mut command = Agent::run(host, sections).command();
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.stderr(writer).spawn().unwrap();
    (child, reader)
}

/// Ends it by SIGTERM.
fn end(mut child: Child) {
    let number = Pid::from_raw(child.id().try_into().unwrap());
    kill(number, Signal::SIGTERM).unwrap();
    assert!(ended(&mut child).is_some_and(|it| it.success()));
}

#[test]
fn a_log_that_nothing_reads_stops_neither_collection_nor_the_end() {
    let host = Host::new();
    let (_tool, _pod) = with_a_pod(&host);
    let cri = Cri::serve(&socket(&host));
    stale_lease(&host);
    let gc = json!({"runtimeSocket": socket(&host)});
    let (child, mut reader) = with_full_log(&host, &json!({ "gc": gc }));
    assert!(eventually(|| !has_stale_lease(&host)));
    let number = Pid::from_raw(child.id().try_into().unwrap());
    stale_lease(&host);
    kill(number, Signal::SIGHUP).unwrap();
    assert!(eventually(|| !has_stale_lease(&host)));
    assert!(cri.lists() >= 2);
    end(child);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text.trim(), "", "nothing was read before the end");
}

#[test]
fn a_log_that_is_read_again_has_the_waiting_lines_and_the_number_of_the_others() {
    let host = Host::new();
    let (tool, _pod) = with_a_pod(&host);
    let bridge = host.bridge_v4().with("bridge", "cni1");
    let talks = json!({"type": "talks"});
    tool.configure("pods", &[bridge.config().clone(), talks]);
    host.script("talks", "seq 5000 >&2");
    stale_lease(&host);
    let cri = Cri::serve(&socket(&host));
    let gc = json!({"runtimeSocket": socket(&host)});
    let (child, reader) = with_full_log(&host, &json!({"gc": gc, "metrics": {}}));
    let dropped = || {
        metrics()?
            .all("cni_agent_log_lines_dropped_total", &[])
            .pop()
    };
    assert!(eventually(|| dropped().is_some_and(|it| it > 0)));
    assert!(eventually(|| !has_stale_lease(&host)));
    let log = Read::start(reader);
    // The queue has room again for the next line, which follows the number of those that were dropped.
    log.has("\nDEL container gone interface eth0 on network pods\n1\n2\n");
    log.has("\n1000\n");
    stale_lease(&host);
    let number = Pid::from_raw(child.id().try_into().unwrap());
    let lists = cri.lists();
    kill(number, Signal::SIGHUP).unwrap();
    assert!(eventually(|| cri.lists() > lists && !has_stale_lease(&host)));
    log.has(" lines were dropped: nothing read standard error\n");
    end(child);
}

/// What a thread has read from the log.
struct Read(Arc<Mutex<String>>);

impl Read {
    fn start(mut reader: io::PipeReader) -> Self {
        let text = Arc::<Mutex<String>>::default();
        let so_far = Arc::clone(&text);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                let part = String::from_utf8_lossy(&bytes[..count]);
                so_far.lock().unwrap().push_str(&part);
            }
        });
        Self(text)
    }

    /// Waits for this text. If it does not come, shows the first lines that are not empty.
    #[track_caller]
    fn has(&self, text: &str) {
        let is_there = eventually(|| self.0.lock().unwrap().contains(text));
        let log = self.0.lock().unwrap();
        let start: Vec<_> = log.trim_start().lines().take(20).collect();
        assert!(is_there, "{text:?}: {start:#?}");
    }
}

#[test]
fn plugins_write_to_the_log() {
    let host = Host::new();
    let (tool, _pod) = with_a_pod(&host);
    let bridge = host.bridge_v4().with("bridge", "cni1");
    tool.configure("pods", &[bridge.config().clone(), json!({"type": "talks"})]);
    host.script("talks", "echo hello from a plugin >&2");
    stale_lease(&host);
    let cri = Cri::serve(&socket(&host));
    let agent = agent(&host);
    round(&agent, &cri);
    agent.says("hello from a plugin\n");
    agent.end();
}

/// strace stops the thread of the event loop for a minute after a signal woke it.
#[test]
fn a_blocked_event_loop_does_not_delay_the_end() {
    let host = Host::new();
    let agent = agent_with(&host, &json!({"runtimeSocket": null}));
    let directory = PathBuf::from(format!("/proc/{}", agent.pid()));
    let tasks = fs::read_dir(directory.join("task")).unwrap();
    let mut tasks = tasks.map(|it| it.unwrap().path());
    let is_loop = |it: &PathBuf| fs::read_to_string(it.join("comm")).unwrap() == "parts\n";
    let event_loop = tasks.find(is_loop).unwrap();
    let mut strace = Command::new("strace");
    strace.arg("-p").arg(event_loop.file_name().unwrap());
    strace.args(["-o", "/dev/null", "-e", "trace=/epoll_p?wait"]);
    strace.args(["-e", "inject=/epoll_p?wait:delay_exit=60000000"]);
    let mut strace = strace.stderr(Stdio::null()).spawn().unwrap();
    let status = |directory: &Path| fs::read_to_string(directory.join("status")).unwrap();
    let tracer = format!("TracerPid:\t{}\n", strace.id());
    assert!(eventually(|| status(&event_loop).contains(&tracer)));
    agent.signal(Signal::SIGHUP);
    // strace also stops the thread for a moment at each of its calls.
    let is_stopped = || (0..5_000).all(|_| status(&event_loop).contains("State:\tt"));
    assert!(eventually(is_stopped));
    agent.signal(Signal::SIGTERM);
    let has_ended = eventually(|| status(&directory).contains("State:\tZ"));
    // It cannot be waited for before strace has let its thread go.
    strace.kill().unwrap();
    strace.wait().unwrap();
    assert!(has_ended);
    agent.says("cni-agent: ended while a part was still busy");
}

/// Files and directories of an agent are trusted, but a pipe may be among them by mistake.
#[test]
fn a_file_that_blocks_does_not_delay_the_end() {
    let host = Host::new();
    let (_tool, _pod) = with_a_pod(&host);
    let mode = nix::sys::stat::Mode::S_IRWXU;
    let lease = host.lease_dir().join("pods/10.1.0.77");
    let consent = host.dir().join("consent");
    for path in [&lease, &host.dir().join("net.d/pipe.conflist"), &consent] {
        nix::unistd::mkfifo(path, mode).unwrap();
    }
    let cri = Cri::serve(&socket(&host));
    let gc = json!({"runtimeSocket": socket(&host)});
    let sections = json!({
        "gc": gc,
        "repair": {"unless": consent},
        "uplink": {},
        "metrics": {"listen": "unix:/run/test/agent.sock", "logFiles": [host.dir().join("consent")]},
    });
    let agent = Agent::start(&host, &sections);
    agent.is_up();
    agent.signal(Signal::SIGHUP);
    assert!(eventually(|| cri.lists() > 0), "{}", agent.log());
    agent.end();
}

/// Processes of the node change its links and rules all the time, which holds the kernel's locks.
#[test]
fn changes_of_links_and_rules_do_not_delay_the_end() {
    let host = Host::new();
    let (_tool, _pod) = with_a_pod(&host);
    age(&host.lease_dir());
    let cri = Cri::serve(&socket(&host));
    let script =
        "while :; do for i in $(seq 20); do echo link add t$i type dummy; done >/run/test/b
        for i in $(seq 20); do echo link delete t$i; done >>/run/test/b
        ip -force -batch /run/test/b; nft 'add table t; add chain t c; delete table t'; done";
    let mut busy = Command::new("sh");
    let mut busy = busy
        .args(["-c", script])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let gc = json!({"runtimeSocket": socket(&host)});
    let sections = json!({"gc": gc, "repair": {}, "uplink": {}});
    for _ in 0..5 {
        let lists = cri.lists();
        let agent = Agent::start(&host, &sections);
        agent.is_up();
        agent.signal(Signal::SIGHUP);
        assert!(eventually(|| cri.lists() > lists), "{}", agent.log());
        agent.end();
    }
    busy.kill().unwrap();
    busy.wait().unwrap();
    drop(fs::remove_file(host.dir().join("b")));
}
