//! How long a runtime waits for a plugin: from its start to its end, ours beside the
//! reference, in turns, so that whatever else the machine does hits both.
//!
//! `scripts/bench.sh` builds the executables and runs this.

mod attach;
mod growth;
mod leases;
mod limits;
mod ports;
mod throughput;
mod timing;

use std::path::PathBuf;

use tests::Host;

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
    for case in &options.cases {
        match case.as_str() {
            "attach" => attach::run(&host, sides(), options.rounds),
            "growth" => growth::run(&host, sides(), options.rounds),
            "leases" => leases::run(&host, sides()),
            "ports" => ports::run(&host, sides(), options.rounds),
            "bandwidth" => {
                limits::run(&host, sides(), options.rounds);
                throughput::run(&host, &sides());
            }
            _ => panic!("unknown case {case:?}; there are {CASES:?}"),
        }
    }
}

const CASES: [&str; 5] = ["attach", "growth", "leases", "ports", "bandwidth"];

struct Options {
    ours: PathBuf,
    reference: PathBuf,
    rounds: u32,
    cases: Vec<String>,
}

impl Options {
    /// `--ours DIR --reference DIR --rounds N [CASE...]`; cargo adds `--bench`.
    fn of(arguments: impl Iterator<Item = String>) -> Self {
        let mut arguments = arguments.filter(|argument| argument != "--bench");
        let mut options = Self {
            ours: "/opt/cni/bin".into(),
            reference: tests::REFERENCE.into(),
            rounds: 200,
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
}
