//! Detached processes of DEL: they wait for the kernel's work after a link's deletion.

use std::fs;
use std::process::{Child, Command};

use serde_json::{Value, json};
use tests::faults::strace;
use tests::{Chain, Host, Network, Place as _, Removal, eventually};

/// Returns a network with one container address, so each ADD gets the address of the last DEL.
fn network(host: &Host) -> Network<'_> {
    host.bridge_v4()
        .with("ipMasq", true)
        .with("ipam.ranges", json!([[{"subnet": "10.1.0.0/30"}]]))
}

#[test]
fn name_and_address_are_free_as_soon_as_del_returns_and_nothing_stays() {
    let host = Host::new();
    let a = host.sandbox("a");
    network(&host).add(&a);
    network(&host).del(&a);
    let before = host.snapshot();
    for round in 0..200 {
        let result = network(&host).add(&a);
        assert_eq!(result["ips"][0]["address"], "10.1.0.2/30", "{round}");
        assert!(round % 50 != 0 || a.pings("10.1.0.1"));
        let del = network(&host).on("DEL", &a);
        let del = if round % 2 == 0 {
            del
        } else {
            del.without("CNI_NETNS")
        };
        assert_eq!(del.ok(), Value::Null);
        assert_eq!(a.links(), ["lo"], "{round}");
    }
    host.snapshot().assert_same_as(&before);
    let ended = eventually(|| host.left_over().is_empty());
    assert!(ended, "{:?}", host.left_over());
}

#[test]
fn del_waits_itself_where_its_process_cannot_be_started_or_is_killed() {
    let host = Host::new();
    let a = host.sandbox("a");
    for (harm, told) in [("error=EAGAIN", "INJECTED"), ("signal=KILL", "= ?\n")] {
        network(&host).add(&a);
        let file = host.dir().join("trace");
        let mut strace = strace(&file);
        strace.extend(["-P", "/proc/self/exe", "-e"].map(str::to_owned));
        strace.push(format!("inject=execve:{harm}"));
        let del = network(&host).on("DEL", &a).under(&strace).run();
        assert_eq!(del.ok(), Value::Null);
        let trace = fs::read_to_string(file).unwrap();
        assert!(trace.contains(told), "{trace}");
        assert_eq!(host.links(), ["cni0", "lo"], "{harm}");
    }
}

const NOT_SUPPORTED: i32 = 95;
const NO_DEVICE: i32 = 19;

/// The process ends with the kernel's error number, which DEL reports.
#[test]
fn refusals_of_the_kernel_are_reported() {
    let host = Host::new();
    for (task, status) in [
        ("delete link 1", NOT_SUPPORTED),
        ("delete link 99999", NO_DEVICE),
        ("close", 0),
    ] {
        let run = host.plugin("bridge").argument("--left-over").argument(task);
        assert_eq!(run.run().status.code(), Some(status), "{task}");
    }
    assert_eq!(host.links(), ["lo"]);
}

/// A runtime reads standard output and error until every process has closed them, and may have
/// forgotten to close other files.
#[test]
fn no_file_of_the_callers_is_kept_open() {
    let host = Host::new();
    let a = host.sandbox("a");
    network(&host).add(&a);
    let file = host.dir().join("trace");
    let file = file.to_str().unwrap();
    let words = ["sh", "-c", "exec 7</dev/zero; exec \"$@\"", "sh"];
    let strace = [
        "strace",
        "-f",
        "-o",
        file,
        "-e",
        "trace=execve,dup2,dup3,close",
    ];
    let words: Vec<_> = words.into_iter().chain(strace).map(str::to_owned).collect();
    network(&host).on("DEL", &a).under(&words).ok();
    let trace = fs::read_to_string(file).unwrap();
    let started = |line: &&str| line.contains("execve(\"/proc/self/exe\"");
    let start = trace.lines().find(started).unwrap();
    let (process, _) = start.split_once(' ').unwrap();
    let calls: Vec<_> = trace
        .lines()
        .filter(|line| line.starts_with(process))
        .collect();
    let replaced = |number: u8| {
        let to = format!(", {number}");
        calls
            .iter()
            .any(|call| call.contains(" dup") && call.contains(&to))
    };
    assert!(replaced(0) && replaced(1) && replaced(2), "{calls:#?}");
    assert!(
        calls.iter().any(|call| call.contains("close(7)")),
        "{calls:#?}"
    );
}

/// A pid namespace whose process 1 reaps only its own children: a daemon in a container that runs
/// plugins.
struct Careless {
    parent: Child,
}

impl Careless {
    fn new() -> Self {
        let words = ["--pid", "--fork", "--kill-child", "sleep", "300"];
        let parent = Command::new("unshare").args(words).spawn().unwrap();
        let careless = Self { parent };
        assert!(eventually(|| careless.first().is_some()));
        careless
    }

    /// Returns process 1 by its number outside.
    fn first(&self) -> Option<String> {
        let own = self.parent.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
        let first = children.split_whitespace().next()?.to_owned();
        let name = fs::read_to_string(format!("/proc/{first}/comm")).unwrap();
        (name == "sleep\n").then_some(first)
    }

    /// Returns a wrapper that runs a command inside and waits for it only.
    fn wrapper(&self) -> [String; 2] {
        let namespace = format!("--pid=/proc/{}/ns/pid", self.first().unwrap());
        ["nsenter".to_owned(), namespace]
    }

    /// Returns all processes inside except the first, including zombies, with their states.
    fn others(&self) -> Vec<String> {
        let first = self.first().unwrap();
        let own = fs::read_link(format!("/proc/{first}/ns/pid")).unwrap();
        let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children"));
        let adopted = children.unwrap();
        let adopted = adopted.split_whitespace().map(str::to_owned);
        let all = fs::read_dir("/proc").unwrap();
        let all = all.filter_map(|it| it.unwrap().file_name().into_string().ok());
        let living = all.filter(|it| {
            fs::read_link(format!("/proc/{it}/ns/pid")).is_ok_and(|it| it == own) && *it != first
        });
        let stat = |it: String| fs::read_to_string(format!("/proc/{it}/stat")).ok();
        living.chain(adopted).filter_map(stat).collect()
    }
}

impl Drop for Careless {
    fn drop(&mut self) {
        self.parent.kill().unwrap();
        self.parent.wait().unwrap();
    }
}

#[test]
fn del_leaves_no_process_where_process_1_does_not_reap() {
    let host = Host::new();
    let a = host.sandbox("a");
    let careless = Careless::new();
    let chain = Chain::new(&host, &["bridge", "portmap", "bandwidth"]);
    let chain = chain.with("bridge", "ipMasq", &json!(true));
    for removal in [Removal::Del, Removal::DelForgotten, Removal::Gc] {
        let mut result = Value::Null;
        for place in 0..chain.len() {
            let add = chain.call(place, "ADD", (&a, &result));
            result = add.under(&careless.wrapper()).ok();
        }
        for place in chain.order(removal) {
            let remove = chain.removal(place, removal, (&a, &result));
            remove.under(&careless.wrapper()).ok();
            assert!(careless.others().is_empty(), "{:#?}", careless.others());
        }
        assert_eq!(a.links(), ["lo"]);
        assert!(host.leases("pods").is_empty());
    }
}
