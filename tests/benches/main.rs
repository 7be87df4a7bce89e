//! Time that a runtime waits for a plugin, from start to exit, for ours and the reference. The two
//! alternate, so that other load on the machine affects both.
//!
//! `scripts/bench.sh` builds the executables and runs this.

mod attach;
mod burst;
mod chain;
mod cluster;
mod datapath;
mod dhcp;
mod firewall;
mod floor;
mod footprint;
mod growth;
mod latency;
mod leases;
mod limits;
mod ports;
mod ptp;
mod reload;
mod report;
mod single;
mod throughput;
mod timing;
mod tuned;

use std::path::PathBuf;

use tests::Host;

use report::Report;
use timing::Side;

fn main() {
    let options = Options::of(std::env::args().skip(1));
    let sides = || {
        [
            Side::new("ours", &options.ours),
            Side::new("reference", &options.reference),
        ]
    };
    let host = Host::new();
    let mut report = Report::default();
    for case in &options.cases {
        let report = &mut report;
        match case.as_str() {
            "attach" => attach::run(&host, sides(), options.rounds, report),
            "ptp" => ptp::run(&host, sides(), options.rounds, report),
            "single" => single::run(&host, sides(), options.rounds, report),
            "dhcp" => dhcp::run(&host, sides(), options.rounds, report),
            "floor" => floor::run(&host, sides(), options.rounds, report),
            "chain" => chain::run(&host, sides(), options.rounds, report),
            "podman" => chain::run_podman(&host, sides(), options.rounds, report),
            "burst" => burst::run(&host, sides(), report),
            "growth" => growth::run(&host, sides(), options.rounds, report),
            "leases" => leases::run(&host, sides(), report),
            "ports" => ports::run(&host, sides(), options.rounds, report),
            "cluster" => cluster::run(&host, options.rounds, report),
            "reload" => reload::run(&host, &options.ours, options.rounds.min(20), report),
            "bandwidth" => limits::run(&host, sides(), options.rounds, report),
            "devices" => limits::run_devices(&host, &options.ours, options.rounds, report),
            "firewall" => firewall::run(&host, sides(), options.rounds, report),
            "tuning" => tuned::run(&host, sides(), options.rounds, report),
            "datapath" => datapath::run(&host, &options.directories(), &options.extent(), report),
            "latency" => latency::run(&host, &options.directories(), &options.extent(), report),
            "throughput" => throughput::run(&host, &sides(), report),
            "footprint" => footprint::run(&host, &sides(), report),
            _ => panic!("unknown case {case:?}; there are {CASES:?}"),
        }
    }
    if let Some(path) = &options.json {
        report.write(path, &sides());
    }
}

const CASES: [&str; 21] = [
    "attach",
    "ptp",
    "single",
    "dhcp",
    "floor",
    "chain",
    "podman",
    "burst",
    "growth",
    "leases",
    "ports",
    "cluster",
    "reload",
    "bandwidth",
    "devices",
    "firewall",
    "tuning",
    "datapath",
    "latency",
    "throughput",
    "footprint",
];

struct Options {
    ours: PathBuf,
    reference: PathBuf,
    nftables_reference: Option<PathBuf>,
    has_guards: bool,
    rounds: u32,
    pods: usize,
    is_quick: bool,
    json: Option<PathBuf>,
    cases: Vec<String>,
}

impl Options {
    /// Parses `--ours DIR --reference DIR --nftables-reference DIR --rounds N --pods N --guards --quick
    /// --json FILE [CASE...]`; cargo adds `--bench`.
    fn of(arguments: impl Iterator<Item = String>) -> Self {
        let mut arguments = arguments.filter(|argument| argument != "--bench");
        let mut options = Self {
            ours: "/opt/cni/bin".into(),
            reference: tests::REFERENCE.into(),
            nftables_reference: None,
            has_guards: false,
            rounds: 200,
            pods: 1_000,
            is_quick: false,
            json: None,
            cases: Vec::new(),
        };
        while let Some(option) = arguments.next() {
            let mut value = || {
                let value = arguments.next();
                value.unwrap_or_else(|| panic!("{option} needs a value"))
            };
            match option.as_str() {
                "--ours" => options.ours = value().into(),
                "--reference" => options.reference = value().into(),
                "--nftables-reference" => options.nftables_reference = Some(value().into()),
                "--pods" => options.pods = value().parse().expect("--pods is a number"),
                "--guards" => options.has_guards = true,
                "--quick" => options.is_quick = true,
                "--json" => options.json = Some(value().into()),
                "--rounds" => options.rounds = value().parse().expect("--rounds is a number"),
                _ if option.starts_with('-') => panic!("unknown option {option}"),
                _ => options.cases.push(option),
            }
        }
        if options.cases.is_empty() {
            options.cases = CASES.map(str::to_owned).to_vec();
        }
        options
    }

    fn directories(&self) -> datapath::Directories<'_> {
        datapath::Directories {
            ours: &self.ours,
            reference: &self.reference,
            nftables: self.nftables_reference.as_deref(),
            has_guards: self.has_guards,
        }
    }

    fn extent(&self) -> datapath::Extent {
        if self.is_quick {
            return datapath::Extent::Quick;
        }
        datapath::Extent::Whole {
            rounds: self.rounds,
            pods: self.pods,
        }
    }
}
