//! Detached processes of DEL: they wait for the kernel's work after a link's deletion.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command};

use serde_json::{Value, json};
use tests::faults::strace;
use tests::{Chain, Host, Network, Place as _, Removal, Sandbox, eventually};

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
    let result = network(&host).add(&a);
    let limits = host.bandwidth().with("egressRate", 1_000_000);
    let limits = limits
        .with("egressBurst", 1_000_000)
        .with("prevResult", result);
    limits.add(&a);
    for network in [limits, network(&host)] {
        expect_closed(&host, &network, &a);
    }
}

fn expect_closed(host: &Host, network: &Network<'_>, a: &Sandbox) {
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
    network.on("DEL", a).under(&words).ok();
    let trace = fs::read_to_string(file).unwrap();
    let processes = |call: &str| {
        let lines = trace.lines().filter(|line| line.contains(call));
        let numbers = lines.filter_map(|line| line.split(' ').next());
        numbers.collect::<BTreeSet<_>>().len()
    };
    assert_eq!(processes("close(7)"), 1, "{trace}");
    for number in 0..3 {
        let is_replaced =
            |line: &str| line.contains(" dup") && line.contains(&format!(", {number}"));
        assert!(trace.lines().any(is_replaced), "{trace}");
    }
}

/// A pid namespace, as of a container in which plugins run.
struct Container {
    parent: Child,
    has_proc: bool,
}

/// Process 1 that reaps only its own children, as a daemon.
const CARELESS: [&str; 2] = ["sleep", "300"];
/// Process 1 that reaps all, as an init.
const INIT: [&str; 3] = ["perl", "-e", "$SIG{CHLD} = 'IGNORE'; sleep 300 while 1"];

impl Container {
    /// Starts `words` as process 1, with a /proc that shows the namespace or that of the host.
    fn new(words: &[&str], has_proc: bool) -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--kill-child"]);
        if has_proc {
            unshare.arg("--mount-proc");
        }
        let parent = unshare.args(words).spawn().unwrap();
        let container = Self { parent, has_proc };
        let name = format!("{}\n", words[0]);
        let has_begun = || {
            let first = container.first();
            first.is_some_and(|it| {
                fs::read_to_string(format!("/proc/{it}/comm")).is_ok_and(|it| it == name)
            })
        };
        assert!(eventually(has_begun));
        container
    }

    /// Returns process 1 by its number outside.
    fn first(&self) -> Option<String> {
        let own = self.parent.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
        children.split_whitespace().next().map(str::to_owned)
    }

    /// Returns a wrapper that runs a command inside and waits for it only.
    fn wrapper(&self) -> Vec<String> {
        let namespaces = format!("/proc/{}/ns", self.first().unwrap());
        let mut words = vec!["nsenter".to_owned(), format!("--pid={namespaces}/pid")];
        if self.has_proc {
            words.push(format!("--mount={namespaces}/mnt"));
        }
        words
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
        let all: BTreeSet<_> = living.chain(adopted).collect();
        let stat = |it: String| fs::read_to_string(format!("/proc/{it}/stat")).ok();
        all.into_iter().filter_map(stat).collect()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.parent.kill().unwrap();
        self.parent.wait().unwrap();
    }
}

/// Returns the results of trials whether process 1 reaps.
fn trials() -> Vec<String> {
    let files = fs::read_dir("/run/cni/reaping").into_iter().flatten();
    let texts = files.map(|it| fs::read_to_string(it.unwrap().path()).unwrap());
    texts.collect()
}

/// Returns the tasks of the processes that a DEL starts in the container.
fn tasks(host: &Host, a: &Sandbox, container: &Container) -> Vec<String> {
    network(host).on("ADD", a).under(&container.wrapper()).ok();
    let file = host.dir().join("trace");
    let words = [container.wrapper(), strace(&file)].concat();
    network(host).on("DEL", a).under(&words).ok();
    assert_eq!(a.links(), ["lo"]);
    let trace = fs::read_to_string(&file).unwrap();
    let tasks = trace
        .lines()
        .filter_map(|it| it.split_once("\"--left-over\", \""));
    let tasks = tasks.filter_map(|it| it.1.split_once('"'));
    tasks.map(|it| it.0.to_owned()).collect()
}

#[test]
fn process_1_that_reaps_is_tried_once_and_then_left_what_takes_long() {
    let host = Host::new();
    let a = host.sandbox("a");
    let container = Container::new(&INIT, true);
    let first = tasks(&host, &a, &container);
    assert!(first.iter().any(|it| it == "leave an orphan"), "{first:?}");
    assert_eq!(trials(), ["process 1 reaps\n"]);
    for _ in 0..3 {
        let later = tasks(&host, &a, &container);
        let deletes = later.iter().filter(|it| it.starts_with("delete link"));
        assert_eq!((deletes.count(), later.len()), (1, 1), "{later:?}");
    }
    let ended = eventually(|| container.others().is_empty());
    assert!(ended, "{:#?}", container.others());
}

#[test]
fn process_1_that_does_not_reap_is_tried_once_and_del_waits_itself() {
    let host = Host::new();
    let a = host.sandbox("a");
    let container = Container::new(&CARELESS, true);
    for round in 0..3 {
        let tasks = tasks(&host, &a, &container);
        assert_eq!(tasks.is_empty(), round > 0, "{tasks:?}");
        assert_eq!(trials(), [""]);
        assert_eq!(container.others().len(), 1, "{:#?}", container.others());
    }
    // Another container has a trial of its own.
    let other = Container::new(&INIT, true);
    assert!(!tasks(&host, &a, &other).is_empty());
    assert_eq!(trials().len(), 2);
}

/// With the /proc of another pid namespace, nothing is tried.
#[test]
fn del_leaves_no_process_where_process_1_is_not_known_to_reap() {
    let host = Host::new();
    let a = host.sandbox("a");
    let careless = Container::new(&CARELESS, false);
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
