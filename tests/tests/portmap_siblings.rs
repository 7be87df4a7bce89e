//! portmap: a container on two networks, for which the runtime asks for the same ports, as podman
//! does.
//!
//! The address as which 127.0.0.1 is masqueraded shows which network serves.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tests::ports::rules;
use tests::traffic::{tcp_by_port, udp_by_port};
use tests::{Host, Invocation, Network, Place as _, Ports, Sandbox, at_once, eventually};

const PORTS: [&str; 2] = ["8080:80", "8053:53/udp"];
const ONE: &str = "10.1.0.1";
const TWO: &str = "10.2.0.1";

/// Container `a` on the networks `pods` (eth0) and `more` (eth1).
struct Container<'h> {
    host: &'h Host,
    a: Sandbox,
    /// portmap of each network, and its interface.
    networks: [(Network<'h>, &'static str); 2],
}

impl<'h> Container<'h> {
    fn new(host: &'h Host, mappings: &[&str]) -> Self {
        let [pods, more] = [host.ports(), more(host)];
        Self::on(host, [&pods, &more], mappings)
    }

    /// Creates the pairs but no ports.
    fn on(host: &'h Host, [pods, more]: [&Ports<'h>; 2], mappings: &[&str]) -> Self {
        let a = host.sandbox("a");
        let attach = |ports: &Ports<'h>, interface| {
            let result = ports.bridge().on("ADD", &a).ifname(interface).ok();
            let portmap = ports.portmap().clone().with("prevResult", result);
            (Ports::asking(&portmap, mappings), interface)
        };
        let networks = [attach(pods, "eth0"), attach(more, "eth1")];
        Self { host, a, networks }
    }

    fn call(&self, verb: &str, network: usize) -> Invocation {
        let (portmap, interface) = &self.networks[network];
        portmap.on(verb, &self.a).ifname(interface)
    }

    #[track_caller]
    fn add_both(&self) {
        for network in 0..2 {
            self.call("ADD", network).ok();
        }
    }

    /// Returns the gateway of the serving network, for TCP and UDP.
    fn served_by(&self) -> [Option<IpAddr>; 2] {
        [
            tcp_by_port(self.host, "127.0.0.1:8080", (&self.a, 80)),
            udp_by_port(self.host, "127.0.0.1:8053", (&self.a, 53)),
        ]
    }

    #[track_caller]
    fn expect_served_by(&self, gateway: &str) {
        assert_eq!(self.served_by(), [Some(gateway.parse().unwrap()); 2]);
    }

    #[track_caller]
    fn expect_nothing_left(&self) {
        let rules = rules(self.host);
        assert!(
            !rules.contains("cni:") && !rules.contains("conditions-"),
            "{rules}"
        );
        let left: Vec<_> = fs::read_dir("/run/cni/portmap").unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Returns the network `more` on a bridge of its own.
fn more(host: &Host) -> Ports<'_> {
    let ranges = json!([[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]]);
    let ports = host.ports().named("more");
    ports
        .with_bridge("bridge", "cni1")
        .with_bridge("isDefaultGateway", false)
        .with_bridge("ipam.ranges", ranges)
}

#[test]
fn the_first_network_serves_and_the_second_takes_over_when_it_goes() {
    let host = Host::new();
    let container = Container::new(&host, &PORTS);
    container.add_both();
    container.expect_served_by(ONE);
    for network in 0..2 {
        container.call("CHECK", network).ok();
    }
    container.call("DEL", 0).ok();
    container.expect_served_by(TWO);
    container.call("CHECK", 1).ok();
    container.call("DEL", 1).ok();
    container.expect_nothing_left();
}

#[test]
fn a_network_that_comes_back_stands_by_for_the_one_that_took_over() {
    let host = Host::new();
    let container = Container::new(&host, &PORTS);
    container.add_both();
    container.call("DEL", 0).ok();
    container.call("ADD", 0).ok();
    container.expect_served_by(TWO);
    container.call("DEL", 1).ok();
    container.expect_served_by(ONE);
    container.call("DEL", 0).ok();
    container.expect_nothing_left();
}

#[test]
fn a_network_that_stands_by_goes_without_a_trace() {
    let host = Host::new();
    let container = Container::new(&host, &PORTS);
    container.add_both();
    container.call("DEL", 1).without("CNI_NETNS").ok();
    container.expect_served_by(ONE);
    container.call("CHECK", 0).ok();
    container.call("DEL", 0).ok();
    container.expect_nothing_left();
}

#[test]
fn gc_of_one_network_leaves_the_ports_to_the_other() {
    for (collected, serves) in [(0, TWO), (1, ONE)] {
        let host = Host::new();
        let container = Container::new(&host, &PORTS);
        container.add_both();
        container.networks[collected].0.gc(&[]).ok();
        container.expect_served_by(serves);
        container.call("CHECK", 1 - collected).ok();
        container.networks[1 - collected].0.gc(&[]).ok();
        container.expect_nothing_left();
    }
}

#[test]
fn reload_knows_both() {
    for order in [[0, 1], [1, 0]] {
        let host = Host::new();
        let container = Container::new(&host, &PORTS);
        container.add_both();
        host.run("nft", &["flush", "ruleset"]);
        for network in order {
            container.call("RELOAD", network).ok();
        }
        let after = rules(&host);
        for network in 0..2 {
            container.call("CHECK", network).ok();
            container.call("RELOAD", network).ok();
        }
        assert_eq!(rules(&host), after, "nothing is to be done any more");
        container.expect_served_by([ONE, TWO][order[0]]);
        container.call("DEL", order[0]).ok();
        container.expect_served_by([ONE, TWO][order[1]]);
    }
}

/// A run of `nft monitor` and its output.
struct Monitor {
    process: Child,
    file: PathBuf,
}

impl Monitor {
    fn start(host: &Host) -> Self {
        let file = host.dir().join("events");
        let output = Stdio::from(fs::File::create(&file).unwrap());
        let process = Command::new("nft").arg("monitor").stdout(output).spawn();
        let monitor = Self {
            process: process.unwrap(),
            file,
        };
        assert!(eventually(|| {
            host.run("nft", &["add table ip probe; delete table ip probe"]);
            monitor.heard().contains("delete table ip probe")
        }));
        monitor
    }

    fn heard(&self) -> String {
        fs::read_to_string(&self.file).unwrap()
    }

    /// Returns the transactions so far.
    fn transactions(mut self, host: &Host) -> Vec<String> {
        host.run("nft", &["add table ip last; delete table ip last"]);
        assert!(eventually(|| self.heard().contains("delete table ip last")));
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let heard = self.heard();
        heard.split("# new generation").map(str::to_owned).collect()
    }
}

#[test]
fn the_port_goes_over_in_one_transaction() {
    let host = Host::new();
    let container = Container::new(&host, &PORTS);
    container.add_both();
    let monitor = Monitor::start(&host);
    container.call("DEL", 0).ok();
    let transactions = monitor.transactions(&host);
    let has = |it: &&String, words: &str| {
        it.lines()
            .any(|it| it.contains(words) && it.contains("8080"))
    };
    let deletes = transactions.iter().filter(|it| has(it, "delete element"));
    let deletes: Vec<_> = deletes.collect();
    assert!(!deletes.is_empty(), "{transactions:#?}");
    for transaction in deletes {
        assert!(has(&transaction, "create element"), "{transactions:#?}");
    }
}

/// Each network's ports accept other packets; no rule uses the chain of the network that stands by.
#[test]
fn conditions_of_the_network_that_takes_over_hold() {
    let host = Host::new();
    let outside = host.outside();
    let unless_from = |address: &str| json!([format!("ip saddr != {address}")]);
    let pods = host.ports().with("conditionsV4", unless_from("192.0.2.7"));
    let more = more(&host).with("conditionsV4", unless_from("192.0.2.2"));
    let container = Container::on(&host, [&pods, &more], &PORTS);
    container.add_both();
    // A third attachment of another container deletes the same chain with its DEL.
    let b = host.sandbox("b");
    more.add(&b, &["9090:90"]);
    more.forgotten(&b).ok();
    let asked = |from: &Sandbox| tcp_by_port(from, "192.0.2.1:8080", (&container.a, 80)).is_some();
    container.call("CHECK", 1).ok();
    assert!(asked(&outside));
    container.call("DEL", 0).ok();
    container.expect_served_by(TWO);
    assert!(!asked(&outside));
    container.call("CHECK", 1).ok();
    container.call("DEL", 1).ok();
    container.expect_nothing_left();
}

#[test]
fn another_container_is_refused_by_the_name_of_the_one_that_serves() {
    let host = Host::new();
    let container = Container::new(&host, &PORTS);
    container.add_both();
    let b = host.sandbox("b");
    let asks = host.ports().attach(&b, &["8080:80"]);
    asks.on("ADD", &b).error().expect(11, &["cni:pods/a/eth0"]);
    container.call("DEL", 0).ok();
    asks.on("ADD", &b).error().expect(11, &["cni:more/a/eth1"]);
}

/// A container that lost a network without DEL keeps its ports through the other network.
#[test]
fn a_first_network_that_is_gone_is_taken_over_at_once() {
    let host = Host::new();
    let container = Container::new(&host, &PORTS);
    container.call("ADD", 0).ok();
    container.a.ip("link delete eth0");
    let outcome = container.call("ADD", 1).run();
    outcome.ok();
    assert!(outcome.stderr.contains("taken over"), "{outcome:?}");
    container.expect_served_by(TWO);
}

/// The remaining network serves the port, however the two verbs overlap.
#[test]
fn an_add_beside_the_del_of_the_other_network_loses_no_port() {
    let host = Host::new();
    let container = Container::new(&host, &PORTS);
    let [mut stays, mut goes] = [0, 1];
    container.call("ADD", goes).ok();
    for _ in 0..20 {
        let calls = [container.call("ADD", stays), container.call("DEL", goes)];
        at_once(&calls, Invocation::ok);
        container.expect_served_by([ONE, TWO][stays]);
        container.call("CHECK", stays).ok();
        let listed = rules(&host);
        assert!(
            !listed.contains(["cni:pods/", "cni:more/"][goes]),
            "{listed}"
        );
        (stays, goes) = (goes, stays);
    }
    container.call("DEL", goes).ok();
    container.expect_nothing_left();
}
