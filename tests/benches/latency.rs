//! What a small packet waits for a limit beside a load, and what passes the limit.

use tests::Host;
use tests::latency::{Plan, Side, Span, measure};

use crate::datapath::{Directories, Extent};
use crate::report::Report;

/// Measures each rate in both directions, beside each load.
pub fn run(host: &Host, directories: &Directories<'_>, extent: &Extent, report: &mut Report) {
    let newer = directories.nftables;
    let newer = newer.map(|directory| Side::reference("newer reference", directory));
    let sides = [
        Side::control(directories.ours),
        Side::ours(directories.ours),
        Side::reference("reference", directories.reference),
    ];
    let (rounds, span) = match extent {
        Extent::Whole { rounds, .. } => ((*rounds).min(ROUNDS), Span::seconds(SECONDS)),
        Extent::Quick => (1, Span::QUICK),
    };
    let plan = Plan {
        sides: sides.into_iter().chain(newer).collect(),
        rates: RATES.into(),
        rounds,
        span,
    };
    let table = measure(host, &plan, |table| eprintln!("\nso far\n\n{table}"));
    let title = format!(
        "milliseconds that a request waits longer than with the control, and percent of the rate \
         that pass; medians of {rounds} rounds in turns (smallest to largest)"
    );
    println!("\n{title}\n\n{table}");
    report.values(&title, "by column", &table.to_json());
}

const RATES: [u64; 4] = [10_000_000, 1_000_000, 256_000, 64_000];

/// Most rounds; each takes about five minutes.
const ROUNDS: u32 = 5;

/// Length of a run.
const SECONDS: u32 = 5;
