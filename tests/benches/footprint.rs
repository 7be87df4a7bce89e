//! Disk and memory usage of the executables.

use std::fs;

use serde_json::{Value, json};
use tests::{Host, PLUGINS};

use crate::chain::Chain;
use crate::report::Report;
use crate::timing::{Call, Side};

/// Reports the sizes of the five executables, and their peak memory in an ADD of the chain.
pub fn run(host: &Host, sides: &[Side; 2], report: &mut Report) {
    let title = "size of the executables";
    println!("\n{title}, KiB\n{:24}{:>12}{:>12}", "", "ours", "reference");
    let mut rows = Vec::new();
    let mut sums = [0, 0];
    for plugin in PLUGINS.iter().copied() {
        let size = |side: &Side| fs::metadata(side.directory.join(plugin)).unwrap().len() / 1024;
        let kib = sides.each_ref().map(size);
        sums = [sums[0] + kib[0], sums[1] + kib[1]];
        rows.push(row(plugin, kib));
    }
    rows.push(row("all", sums));
    report.values(title, "KiB", &rows);

    let title = "peak memory of an ADD, median of 15";
    println!("\n{title}, KiB\n{:24}{:>12}{:>12}", "", "ours", "reference");
    let [ours, reference] = sides.each_ref().map(|side| peaks(host, side));
    let rows = ours.into_iter().zip(reference);
    let rows = rows.map(|((plugin, ours), (_, reference))| row(&plugin, [ours, reference]));
    report.values(title, "KiB", &rows.collect::<Vec<_>>());
}

/// Returns each plugin's peak memory. The IPAM plugin's peak counts for the bridge if it is higher.
/// Linux counts pages per processor and sums up every 32 pages, so runs differ by a tenth.
fn peaks(host: &Host, side: &Side) -> Vec<(String, u64)> {
    let pod = host.sandbox(&format!("peak-{}", side.name));
    let mut peaks: [Vec<(String, u64)>; 15] = Default::default();
    for peaks in &mut peaks {
        let mut chain = Chain::new(side, 0);
        chain.walk("ADD", |plugin, request| {
            let (output, peak) = side.peak_memory(&Call::of(&pod, plugin, "ADD"), request);
            peaks.push((plugin.to_owned(), peak));
            output
        });
        chain.walk("DEL", |plugin, request| {
            side.run(&Call::of(&pod, plugin, "DEL"), request).0
        });
    }
    let plugins = 0..peaks[0].len();
    let median = |plugin: usize| {
        let mut of_plugin = peaks.each_ref().map(|it| it[plugin].clone());
        of_plugin.sort_unstable_by_key(|(_, peak)| *peak);
        of_plugin[of_plugin.len() / 2].clone()
    };
    plugins.map(median).collect()
}

fn row(case: &str, [ours, reference]: [u64; 2]) -> Value {
    println!("{case:24}{ours:>12}{reference:>12}");
    json!({"case": case, "ours": ours, "reference": reference})
}
