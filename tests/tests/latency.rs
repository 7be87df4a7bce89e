//! Waiting times are measured: the program behind `scripts/bench.sh --quick latency` works. How long
//! packets wait depends on the machine and its kernel, so no test judges that here.

use tests::Host;
use tests::latency::{Plan, Side, Span, measure};

#[test]
fn every_limit_is_measured_on_every_side() {
    let host = Host::new();
    let plan = Plan {
        sides: Side::under_test(),
        rates: vec![10_000_000, 1_000_000, 64_000],
        rounds: 1,
        span: Span::QUICK,
    };
    let table = measure(&host, &plan, |_| ());
    let (rows, printed) = (table.to_json(), table.to_string());
    // Two directions and two loads.
    assert_eq!(rows.len(), 3 * 2 * 2, "{printed}");
    for row in &rows {
        let case = row["case"].as_str().unwrap();
        // What waits, and what passes.
        assert_eq!(printed.matches(case).count(), 2, "{case}:\n{printed}");
        let sides = row["sides"].as_array().unwrap();
        let names: Vec<_> = sides.iter().map(|side| &side["side"]).collect();
        assert_eq!(names, ["control", "ours", "reference"]);
        let passed = sides
            .iter()
            .filter_map(|side| side["later intervals"][1].as_f64());
        assert_eq!(passed.count(), 3, "{row}");
    }
    // At the highest rate, many requests pass, unless the machine pauses for the whole trial.
    for number in 0..3 {
        let mut fastest = rows.iter().take(4).map(|row| &row["sides"][number]);
        let is_measured = fastest.any(|side| side["p50"][1].as_f64().is_some());
        assert!(is_measured, "{printed}");
    }
}
