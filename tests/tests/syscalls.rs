//! Number of system calls of a plugin: none may make more than `syscalls.txt` allows.
//!
//! The test counts calls of a plugin and its threads on a host with an earlier attachment. It
//! counts from the read of the request on, except for `tests::faults::UNSTEADY`. The IPAM plugin is
//! counted separately; detached processes are not counted. A waiting process makes a varying number
//! of calls. So the run with the fewest of five counts, but the median of five is recorded, because
//! a lucky run would otherwise stay the limit.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tests::dhcp::{Daemon, Server};
use tests::faults::Trace;
use tests::{Chain, Host, Invocation, Network};

type Counts = BTreeMap<String, usize>;

/// All runs by plugin and verb.
struct Ledger<'h> {
    host: &'h Host,
    runs: BTreeMap<String, Vec<Counts>>,
}

impl Ledger<'_> {
    /// Runs each verb of each plugin once.
    fn round(&mut self, round: usize) {
        let host = self.host;
        let ports = [8080, 8053].map(|port| port + u16::try_from(round).unwrap());
        let chain = Chain::new(host, &CHAIN).with_ports(ports);
        self.chained(&chain, &format!("pod{round}"));
        self.alone(&host.host_local(), &format!("lease{round}"));
        self.alone(&host.fixed(), &format!("fixed{round}"));
        self.alone(&host.nic(), &format!("device{round}"));
        self.alone(&host.loopback(), &format!("lo{round}"));
        self.alone(&routed(host), &format!("ptp{round}"));
        self.alone(&card(host), &format!("card{round}"));
        self.alone(&tap(host), &format!("tap{round}"));
        self.behind_bridge(&host.tuning(), &format!("tuned{round}"));
        let sbr = host.bandwidth().with("type", "sbr");
        self.behind_bridge(&sbr, &format!("sbr{round}"));
        let leased = tests::dhcp::network(host).with("type", "dhcp");
        self.behind_bridge(&leased, &format!("leased{round}"));
    }

    /// Runs a call, which must succeed.
    fn run(&mut self, plugin: &str, call: &Invocation) -> Value {
        let file = self.host.dir().join("trace");
        let words = tests::faults::strace(&file);
        let result = call.clone().under(&words).ok();
        let counts = Trace::read(&file).counts();
        let case = format!("{plugin} {}", call.variable("CNI_COMMAND"));
        let runs = self.runs.entry(case).or_default();
        runs.insert(runs.partition_point(|it| sum(it) < sum(&counts)), counts);
        result
    }

    /// Runs ADD, CHECK and DEL of a single plugin.
    fn alone(&mut self, network: &Network<'_>, name: &str) {
        let a = self.host.sandbox(name);
        let plugin = network.config()["type"].as_str().unwrap().to_owned();
        let result = self.run(&plugin, &network.on("ADD", &a));
        self.run(&plugin, &network.check(&a, &result));
        self.run(&plugin, &network.on("DEL", &a));
        a.remove();
    }

    /// Runs ADD, CHECK and DEL of a chained plugin for an interface that the bridge made.
    fn behind_bridge(&mut self, network: &Network<'_>, name: &str) {
        let a = self.host.sandbox(name);
        let before = self.host.bridge_v4().add(&a);
        let plugin = network.config()["type"].as_str().unwrap().to_owned();
        let network = network.clone().with("prevResult", before);
        let result = self.run(&plugin, &network.on("ADD", &a));
        self.run(&plugin, &network.check(&a, &result));
        self.run(&plugin, &network.on("DEL", &a));
        self.host.bridge_v4().del(&a);
        a.remove();
    }

    /// Runs ADD, CHECK and DEL of each plugin of a chain.
    fn chained(&mut self, chain: &Chain<'_>, name: &str) {
        let a = self.host.sandbox(name);
        let mut result = Value::Null;
        for (place, plugin) in CHAIN.into_iter().enumerate() {
            result = self.run(plugin, &chain.call(place, "ADD", (&a, &result)));
        }
        for (place, plugin) in CHAIN.into_iter().enumerate() {
            self.run(plugin, &chain.call(place, "CHECK", (&a, &result)));
        }
        for (place, plugin) in CHAIN.into_iter().enumerate().rev() {
            self.run(plugin, &chain.call(place, "DEL", (&a, &result)));
        }
        a.remove();
    }
}

const CHAIN: [&str; 4] = ["bridge", "portmap", "bandwidth", "firewall"];

const ROUNDS: usize = 5;

/// Returns a network of ptp with both families and masquerading.
fn routed(host: &Host) -> Network<'_> {
    let subnets = ["10.6.0.0/24", "fd00:6::/64"].map(|it| json!([{"subnet": it}]));
    let ptp = host.ptp().with("name", "ptp").with("ipMasq", true);
    ptp.with("ipam.ranges", json!(subnets))
}

/// Returns a network of macvlan.
fn card(host: &Host) -> Network<'_> {
    let ranges = json!([[{"subnet": "10.7.0.0/24"}]]);
    let network = host.card().with("name", "card");
    network.with("ipam.ranges", ranges)
}

/// Returns a network of tap.
fn tap(host: &Host) -> Network<'_> {
    let ranges = json!([[{"subnet": "10.8.0.0/24"}]]);
    let network = host.tap().with("name", "tap");
    network.with("ipam.ranges", ranges)
}

#[test]
fn no_plugin_makes_more_system_calls_than_noted() {
    let host = Host::new();
    let neighbour = host.sandbox("neighbour");
    Chain::new(&host, &CHAIN).add(&neighbour).unwrap();
    let _server = Server::leasing(&[[10, 6, 0, 50]], 600);
    let _daemon = Daemon::start(&host);
    let mut ledger = Ledger {
        host: &host,
        runs: BTreeMap::new(),
    };
    for round in 1..=ROUNDS {
        ledger.round(round);
    }
    let ranked = |rank: usize| -> BTreeMap<_, _> {
        let runs = ledger.runs.iter();
        runs.map(|(case, runs)| (case.clone(), runs[rank].clone()))
            .collect()
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/syscalls.txt");
    if std::env::var_os("SYSCALLS_UPDATE").is_some() {
        fs::write(&file, table(&ranked(ROUNDS / 2))).unwrap();
    }
    let noted = fs::read_to_string(&file).unwrap();
    let fewest = ranked(0);
    let cases = fewest.iter();
    let more: Vec<_> = cases.filter_map(|it| excess(it, &noted)).collect();
    assert!(
        more.is_empty(),
        "more system calls than are noted:\n{}\nIf that is worth it: {HOW_TO_NOTE}",
        more.join("\n")
    );
}

/// Returns the calls above the recorded number. Prints numbers below it for a passing test.
fn excess((case, counts): (&String, &Counts), noted: &str) -> Option<String> {
    let mut lines = noted.lines();
    let noted = lines.find_map(|line| line.strip_prefix(case.as_str()));
    let noted = noted.unwrap_or_else(|| panic!("{case} is not noted: {HOW_TO_NOTE}"));
    let most: usize = noted.split_whitespace().next().unwrap().parse().unwrap();
    let sum = sum(counts);
    if sum < most {
        println!("{case}: {sum} instead of {most}; to keep it there: {HOW_TO_NOTE}");
    }
    (sum > most).then(|| format!("{case}: {}\n    noted: {}", line(counts), noted.trim()))
}

const HOW_TO_NOTE: &str = "SYSCALLS_UPDATE=1 scripts/test.sh -E 'binary(syscalls)'";

fn sum(counts: &Counts) -> usize {
    counts.values().sum()
}

fn line(counts: &Counts) -> String {
    let each = counts.iter().map(|(name, count)| format!("{name} {count}"));
    format!("{:3}  {}", sum(counts), each.collect::<Vec<_>>().join(", "))
}

fn table(counted: &BTreeMap<String, Counts>) -> String {
    let mut table = format!(
        "# The most system calls that tests/tests/syscalls.rs allows. It is written by:\n# {HOW_TO_NOTE}\n"
    );
    for (case, counts) in counted {
        writeln!(table, "{case:<16} {}", line(counts)).unwrap();
    }
    table
}
