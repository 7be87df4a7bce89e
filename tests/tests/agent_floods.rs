//! cni-agent beside programs that change so much that the kernel drops notifications.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::devices::{INGRESS, node, root, three};
use tests::repair::{PERIOD, agent, counts, health, number, pass, restored, rules, sections};
use tests::traffic::tcp_by_port;
use tests::{Agent, Host, Kubelet, Place as _, Sandbox, eventually};

/// A program that repeats a command until this is dropped.
struct Flood(Child);

impl Flood {
    /// Adds a table of another program with a thousand elements and rules, and deletes it, again
    /// and again.
    fn of_rules(host: &Host) -> Self {
        let file = table_file(host, 1_000);
        let script = format!(
            "while :; do nft -f {0}; nft delete table ip flood; done",
            file.display()
        );
        Self::repeat(&script)
    }

    /// Runs a script in a process group of its own.
    fn repeat(script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0);
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.0.id().try_into().unwrap());
        killpg(group, Signal::SIGKILL).unwrap();
        self.0.wait().unwrap();
    }
}

/// Writes a file for nft(8) with a table of this many elements, and as many rules.
fn table_file(host: &Host, elements: u32) -> PathBuf {
    let path = host.dir().join("flood.nft");
    let mut file = fs::File::create(&path).unwrap();
    let addresses: Vec<_> = (0..elements)
        .map(|it| format!("10.77.{}.{}", it / 250, it % 250))
        .collect();
    let addresses = addresses.join(", ");
    writeln!(file, "add table ip flood").unwrap();
    writeln!(
        file,
        "add set ip flood s {{ type ipv4_addr; elements = {{ {addresses} }} }}"
    )
    .unwrap();
    writeln!(file, "add chain ip flood c").unwrap();
    for number in 0..elements {
        writeln!(file, "add rule ip flood c tcp dport {number} counter drop").unwrap();
    }
    path
}

/// Returns whether the kernel dropped notifications for a socket of this netlink protocol.
fn has_dropped(protocol: &str) -> bool {
    let sockets = fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
    sockets.lines().skip(1).any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields[1] == protocol && fields[8] != "0"
    })
}

/// `NETLINK_ROUTE` and `NETLINK_NETFILTER`
const ROUTE: &str = "0";
const NETFILTER: &str = "12";

/// Returns the processor time that the agent has used.
fn used(agent: &Agent) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.pid())).unwrap();
    let fields: Vec<_> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let ticks = |field: usize| fields[field].parse::<u64>().unwrap();
    ticks(11) + ticks(12)
}

/// Checks that the agent uses no processor time any more. A tick is 10 ms.
#[track_caller]
fn is_idle(agent: &Agent) {
    let is_idle = eventually(|| {
        let before = used(agent);
        pass(Duration::from_secs(2));
        used(agent) - before <= 1
    });
    assert!(is_idle, "{}", agent.log());
}

fn is_forwarded(pod: &Sandbox, outside: &Sandbox) -> bool {
    tcp_by_port(outside, "192.0.2.1:8080", (pod, 80)).is_some()
}

#[test]
fn a_loss_beside_a_flood_of_another_programs_rules_is_repaired() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &["8080:80"]);
    let before = rules(&host);
    let agent = agent(&host, &sections());
    let flood = Flood::of_rules(&host);
    for loss in [
        "delete table inet cni-portmap",
        "delete table inet cni-masquerade",
    ] {
        pass(PERIOD);
        host.run("nft", &[loss]);
        let table = loss.trim_start_matches("delete table inet ");
        let is_back = || host.run("nft", &["list", "tables"]).contains(table);
        assert!(eventually(is_back), "{}", agent.log());
    }
    drop(flood);
    host.run("nft", &["add table ip flood; delete table ip flood"]);
    let is_restored = || rules(&host) == before;
    assert!(eventually(is_restored), "{}", agent.log());
    assert!(is_forwarded(&a, &outside));
    assert!(eventually(|| health() == "ok\n"), "{}", agent.log());
    is_idle(&agent);
}

#[test]
fn a_loss_whose_notification_the_kernel_dropped_is_repaired() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &["8080:80"]);
    let before = rules(&host);
    let agent = agent(&host, &sections());
    let reloads = number("repair_reloads_total").unwrap();
    agent.signal(Signal::SIGSTOP);
    let file = table_file(&host, 10_000);
    let file = file.to_str().unwrap();
    for _ in 0..100 {
        host.run("nft", &["-f", file]);
        host.run("nft", &["delete table ip flood"]);
        if has_dropped(NETFILTER) {
            break;
        }
    }
    assert!(has_dropped(NETFILTER));
    host.run("nft", &["delete table inet cni-portmap"]);
    assert!(!is_forwarded(&a, &outside));
    agent.signal(Signal::SIGCONT);
    restored(&host, &before);
    assert!(is_forwarded(&a, &outside));
    counts("repair_reloads_total", reloads + 1);
    assert_eq!(health(), "ok\n");
    is_idle(&agent);
}

/// Changes a link of another program so often that the kernel drops notifications.
fn flood_links(host: &Host) {
    host.ip("link add flood up type bridge");
    let batch = host.dir().join("flood.ip");
    let lines = (0..2_000).map(|it| format!("link set flood alias {it}\n"));
    fs::write(&batch, lines.collect::<String>()).unwrap();
    for _ in 0..20 {
        host.run("ip", &["-batch", batch.to_str().unwrap()]);
        if has_dropped(ROUTE) {
            return;
        }
    }
    panic!("the kernel dropped nothing");
}

fn all_parts(host: &Host) -> Value {
    let mut config = three(host);
    config["uplink"] = json!({});
    config["metrics"] = json!({});
    config
}

#[test]
fn a_change_of_the_uplink_whose_notification_the_kernel_dropped_is_noticed() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &all_parts(&host));
    kubelet.wait_for(INGRESS, 1_000);
    agent.is_up();
    assert!(eventually(
        || number("uplink_mtu_bytes{link=\"uplink\"}") == Some(1500)
    ));
    agent.signal(Signal::SIGSTOP);
    flood_links(&host);
    host.ip("link set uplink mtu 1400");
    host.ip("-n outside link set outside down");
    agent.signal(Signal::SIGCONT);
    counts("uplink_mtu_bytes{link=\"uplink\"}", 1400);
    agent.says("uplink has no carrier");
    let are_unhealthy = || {
        kubelet
            .listed(INGRESS)
            .iter()
            .all(|it| it.health == "Unhealthy")
    };
    assert!(eventually(are_unhealthy), "{}", agent.log());
    host.ip("-n outside link set outside up");
    agent.says("devices: uplink: works again");
    is_idle(&agent);
}

#[test]
fn a_change_of_the_uplink_beside_a_flood_of_link_events_is_noticed() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &all_parts(&host));
    kubelet.wait_for(INGRESS, 1_000);
    assert!(eventually(
        || number("uplink_mtu_bytes{link=\"uplink\"}") == Some(1500)
    ));
    host.ip("link add flood up type bridge");
    let batch = host.dir().join("flood.ip");
    let lines = (0..2_000).map(|it| format!("link set flood alias {it}\n"));
    fs::write(&batch, lines.collect::<String>()).unwrap();
    let script = format!("while :; do ip -batch {}; done", batch.display());
    let flood = Flood::repeat(&script);
    pass(PERIOD);
    host.ip("link set uplink mtu 1400");
    host.ip("-n outside link set outside down");
    counts("uplink_mtu_bytes{link=\"uplink\"}", 1400);
    agent.says("uplink has no carrier");
    drop(flood);
    is_idle(&agent);
}
