//! The cost of a packet behind our plugins and the reference's, compared with bare links.

use std::path::Path;
use std::time::Duration;

use tests::Host;
use tests::datapath::{Guard, Metric, Plan, Side, measure};

use crate::report::Report;

/// Directories of plugins.
pub struct Directories<'d> {
    pub ours: &'d Path,
    pub reference: &'d Path,
    /// A reference with the backend `nftables`: 1.6 or later.
    pub nftables: Option<&'d Path>,
    /// Whether to measure ours also with the other guards of 127.0.0.0/8.
    pub has_guards: bool,
}

/// Extent of a run.
pub enum Extent {
    /// With these many turns, first with two pods and then with more.
    Whole { rounds: u32, pods: usize },
    /// Just enough to see that it works.
    Quick,
}

/// Measures each path with few pods and with many.
pub fn run(host: &Host, directories: &Directories<'_>, extent: &Extent, report: &mut Report) {
    let nftables = directories
        .nftables
        .map(|directory| Side::with_backend("reference, nftables", directory, "nftables"));
    let guards = [("ours, agent", Guard::Agent), ("ours, rules", Guard::Rules)]
        .map(|(name, guard)| Side::guarded(name, directories.ours, guard));
    let guards = guards.into_iter().filter(|_| directories.has_guards);
    let sides = [
        Side::bare(),
        Side::of("ours", directories.ours),
        Side::of("reference, iptables", directories.reference),
    ];
    let (pods, rounds, milliseconds) = match extent {
        Extent::Whole { rounds, pods } => ([2, *pods], *rounds, 40),
        Extent::Quick => ([2, 4], 2, 5),
    };
    let plan = Plan {
        sides: sides.into_iter().chain(nftables).chain(guards).collect(),
        pods: pods.into(),
        rounds,
        slot: Duration::from_millis(milliseconds),
        metrics: Metric::ALL.into(),
    };
    let table = measure(host, &plan, |table| eprintln!("\nso far\n\n{table}"));
    let title = format!(
        "data path, medians of {rounds} rounds in turns; speed compared with bare (quartiles)"
    );
    println!("\n{title}\n\n{table}");
    report.values(&title, "by row", &table.to_json());
}
