//! The cluster network: the work of an agent for many nodes, and what passes between the pods of two.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::{Cluster, LAN};
use tests::datapath::{Line, Metric, Quantity, SERVER_PORT};
use tests::traffic::wait_until;
use tests::{Agent, Host, Place as _, Sandbox, pause};

use crate::report::Report;

/// Measures each part. `rounds` are the turns of each kind of network.
pub fn run(host: &Host, rounds: u32, report: &mut Report) {
    let cluster = Cluster::new(host);
    println!("\nwork of an agent with VXLAN, for nodes of 12 KB with one pod CIDR\n");
    println!(
        "{:>7}{:>12}{:>12}{:>20}",
        "nodes", "routes, s", "peak, MiB", "100 changes/s, CPU"
    );
    let rows = [1_000, 5_000].map(|nodes| work(&cluster, nodes));
    report.values("work of an agent", "s, MiB, percent of a processor", &rows);
    packets(&cluster, rounds, report);
}

/// Measures the time until the routes to all nodes stand, the agent's peak memory, and its use of a
/// processor while nodes change.
fn work(cluster: &Cluster<'_>, count: u32) -> Value {
    let number = u8::try_from(count / 1_000).unwrap();
    let node = cluster.node(100 + number, LAN);
    let name = |it: u32| format!("played-{it}");
    cluster.api.set_images(60);
    for it in 0..count {
        let [high, low] = [it / 256, it % 256];
        let pods = format!("10.{}.{low}.0/24", 64 + high);
        cluster
            .api
            .set(&name(it), &[&pods], &[&format!("10.200.{high}.{low}")]);
    }
    let mut sections = node.sections(&cluster.api);
    sections["cluster"]["mode"] = "vxlan".into();
    let start = Instant::now();
    let agent = node.agent(&sections);
    // Not the metric, which the agent reads every other second.
    let routes = || node.place().ip("-4 -oneline route show proto 201");
    while routes().lines().count() < count.try_into().unwrap() {
        assert!(start.elapsed() < Duration::from_mins(2), "{}", agent.log());
        thread::park_timeout(Duration::from_millis(5));
    }
    let routes = start.elapsed().as_secs_f64();
    // The first synchronization has ended.
    node.health_has("ok");
    // The agent may still write its file.
    pause(Duration::from_secs(1));
    let (start, before) = (Instant::now(), ticks(&agent));
    for turn in 0..HEARTBEATS {
        let ready = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": turn}]);
        cluster.api.set_conditions(&name(turn % count), &ready);
        let next = start + Duration::from_millis(10) * (turn + 1);
        wait_until(next);
    }
    let busy = f64::from(ticks(&agent) - before) / start.elapsed().as_secs_f64();
    let peak = agent.peak() / 1024;
    println!("{count:>7}{routes:>12.2}{peak:>12}{busy:>18.1} %");
    drop(agent);
    (0..count).for_each(|it| cluster.api.delete(&name(it)));
    cluster.api.delete(&node.name());
    json!({"nodes": count, "seconds": routes, "mebibytes": peak, "percent": busy})
}

/// Returns the time for which the agent used a processor, in hundredths of a second.
fn ticks(agent: &Agent) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.pid())).unwrap();
    let behind_name = stat.rsplit(')').next().unwrap();
    let words = behind_name.split_whitespace().skip(11).take(2);
    words.map(|it| it.parse::<u32>().unwrap()).sum()
}

/// A kind of network between two nodes, with a pod on each.
struct Kind {
    name: &'static str,
    pods: [Sandbox; 2],
    target: SocketAddr,
    _agents: Vec<Agent>,
}

/// Measures all kinds in turns, and compares each with the same made by hand: without anything else,
/// and with what any network with masquerading has.
fn packets(cluster: &Cluster<'_>, rounds: u32, report: &mut Report) {
    let kinds = [
        by_hand(cluster, "routes", [1, 2]),
        by_hand(cluster, "routes, masqueraded", [3, 4]),
        by_agents(cluster, "direct", [5, 6]),
        by_hand(cluster, "VXLAN", [7, 8]),
        by_hand(cluster, "VXLAN, masqueraded", [9, 10]),
        by_agents(cluster, "vxlan", [11, 12]),
    ];
    println!(
        "\nbetween pods of two nodes, medians of {rounds} turns; compared with the same by hand,\n\
         without and with a bridge and a rule that masquerades\n"
    );
    let mut rows = Vec::new();
    for metric in [
        Metric::TcpThroughput,
        Metric::TcpAnswer,
        Metric::UdpAnswer,
        Metric::Packets,
    ] {
        let turns: Vec<_> = (0..rounds).map(|turn| take(&kinds, metric, turn)).collect();
        for (part, quantity) in metric.quantities().into_iter().enumerate() {
            let turns = turns.iter();
            let values = turns.map(|turn| turn.iter().map(|it| it[part]).collect());
            rows.extend(row(&kinds, quantity, &values.collect::<Vec<_>>()));
        }
    }
    report.values("between pods of two nodes", "by row", &rows);
}

/// Measures once on each kind, and returns the values of each.
fn take(kinds: &[Kind], metric: Metric, turn: u32) -> Vec<Vec<f64>> {
    let mut values = vec![Vec::new(); kinds.len()];
    let first = usize::try_from(turn).unwrap();
    for place in (0..kinds.len()).map(|it| (it + first) % kinds.len()) {
        values[place] = metric.measure(&kinds[place].line(), SLOT);
    }
    values
}

/// Prints the medians of a quantity, and those of the ratios. `turns` has a value for each kind.
fn row(kinds: &[Kind], quantity: Quantity, turns: &[Vec<f64>]) -> Vec<Value> {
    println!("{}, {}", quantity.name, quantity.unit);
    let rows = kinds.iter().enumerate().map(|(place, kind)| {
        let value = median(turns.iter().map(|turn| turn[place]));
        let first = place / GROUP * GROUP;
        let [bare, masqueraded] = [first, first + 1].map(|other| {
            median(turns.iter().map(|turn| {
                if quantity.more_is_better {
                    turn[place] / turn[other]
                } else {
                    turn[other] / turn[place]
                }
            }))
        });
        println!(
            "    {:20}{value:12.2}{bare:8.2}{masqueraded:8.2}",
            kind.name
        );
        json!({
            "case": quantity.name, "kind": kind.name, "unit": quantity.unit,
            "median": value, "speed": [bare, masqueraded],
        })
    });
    rows.collect()
}

impl Kind {
    fn line(&self) -> Line<'_> {
        let [client, server] = &self.pods;
        let target = self.target;
        Line {
            client,
            server,
            target,
        }
    }
}

fn by_agents(cluster: &Cluster<'_>, name: &'static str, numbers: [u8; 2]) -> Kind {
    let nodes = numbers.map(|it| cluster.started(cluster.node(it, LAN), name));
    let pods = nodes
        .each_ref()
        .map(|(node, _)| node.pod(&format!("pod-of-{}", node.name())));
    Kind {
        name,
        pods,
        target: target(&format!("10.244.{}.2", numbers[1])),
        _agents: nodes.into_iter().map(|it| it.1).collect(),
    }
}

/// Makes nodes whose pods have routed veth pairs, or are behind a bridge and masqueraded. They reach
/// each other through a tunnel if the name says so.
fn by_hand(cluster: &Cluster<'_>, name: &'static str, numbers: [u8; 2]) -> Kind {
    let nodes = numbers.map(|it| cluster.machine(it, LAN));
    let has_tunnel = name.starts_with("VXLAN");
    let mtu = if has_tunnel { 1450 } else { 1500 };
    let pods = [0, 1].map(|it| {
        let (node, own, other) = (nodes[it].place(), numbers[it], numbers[1 - it]);
        node.set_sysctl("net/ipv4/ip_forward", "1");
        let network = if has_tunnel {
            tunnel(node, own, other)
        } else {
            "192.0.2"
        };
        let via = format!("{network}.{other}");
        node.ip(&format!("route add 10.99.{other}.0/24 via {via}"));
        let pod = cluster.sandbox(&format!("pod-by-hand-{own}"));
        node.ip(&format!(
            "link add pod mtu {mtu} type veth peer name eth0 mtu {mtu} netns {}",
            pod.name()
        ));
        let gateway = if name.ends_with("masqueraded") {
            masquerade(node, own)
        } else {
            "pod"
        };
        node.ip("link set pod up");
        node.ip(&format!("address add 10.99.{own}.1/24 dev {gateway}"));
        pod.ip(&format!("address add 10.99.{own}.2/24 dev eth0"));
        pod.ip("link set eth0 up");
        pod.ip(&format!("route add default via 10.99.{own}.1"));
        pod
    });
    let target = target(&format!("10.99.{}.2", numbers[1]));
    Kind {
        name,
        pods,
        target,
        _agents: Vec::new(),
    }
}

/// Makes a tunnel to the other node. Returns the beginning of the addresses in it.
fn tunnel(node: &Sandbox, own: u8, other: u8) -> &'static str {
    node.ip(&format!(
        "link add vxlan0 type vxlan id 9 local 192.0.2.{own} remote 192.0.2.{other} \
         dstport 4790 dev eth0 nolearning"
    ));
    node.ip(&format!("address add 10.98.0.{own}/24 dev vxlan0"));
    node.ip("link set vxlan0 up");
    "10.98.0"
}

/// Puts the pod behind a bridge, and masquerades what it sends out of the cluster. Returns the bridge.
fn masquerade(node: &Sandbox, own: u8) -> &'static str {
    node.ip("link add cni0 type bridge");
    node.ip("link set pod master cni0");
    node.ip("link set cni0 up");
    for line in [
        "add table ip by-hand",
        "add chain ip by-hand sent { type nat hook postrouting priority srcnat; }",
        &format!(
            "add rule ip by-hand sent ip saddr 10.99.{own}.0/24 ip daddr != 10.99.0.0/16 masquerade"
        ),
    ] {
        node.run("nft", &[line]);
    }
    "cni0"
}

fn target(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), SERVER_PORT)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Number of kinds that are compared: the bare one, that with masquerading, ours.
const GROUP: usize = 3;

/// Number of changes of nodes, 10 ms apart.
const HEARTBEATS: u32 = 1_000;

/// Time of one measurement.
const SLOT: Duration = Duration::from_millis(40);
