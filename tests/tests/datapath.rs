//! The data path is measured: the program behind `scripts/bench.sh --quick datapath` works. How fast
//! it is depends on the machine, so no test judges that.

use std::time::Duration;

use tests::Host;
use tests::datapath::{Metric, Plan, Side, measure};

/// Numbers that each path gets.
const QUANTITIES: usize = 9;

#[test]
fn every_path_is_measured_on_every_side() {
    let host = Host::new();
    let plan = Plan {
        sides: vec![Side::bare(), Side::under_test("ours")],
        pods: vec![2, 3],
        rounds: 1,
        slot: Duration::from_millis(1),
        metrics: Metric::ALL.into(),
    };
    let table = measure(&host, &plan, |_| ());
    let (rows, printed) = (table.to_json(), table.to_string());
    // Five paths with two pods, and seven with three.
    assert_eq!(rows.len(), QUANTITIES * (5 + 7), "{printed}");
    for row in &rows {
        let case = row["case"].as_str().unwrap();
        assert!(printed.contains(case), "{case} is not printed:\n{printed}");
        let sides = row["sides"].as_array().unwrap();
        let names: Vec<_> = sides.iter().map(|side| &side["side"]).collect();
        assert_eq!(names, ["bare", "ours"]);
        let values = sides.iter().filter_map(|side| side["median"].as_f64());
        assert_eq!(values.filter(|value| *value > 0.0).count(), 2, "{row}");
    }
}
