//! Compares bridge with host-local to a program that only sends the requests of its ADD.

use tests::{Host, Place as _};

use crate::attach;
use crate::report::Report;
use crate::timing::{Call, Side, settle};

pub fn run(host: &Host, sides: [Side; 2], rounds: u32, report: &mut Report) {
    let [mut ours, _] = sides;
    let mut floor = Side::new("floor", &ours.directory.join("examples"));
    host.ip("link add floor type bridge");
    host.ip("address add 10.202.0.1/16 dev floor");
    host.ip("link set floor up");
    for number in 0..=rounds {
        let sandbox = host.sandbox(&format!("floor-{number}"));
        let request = attach::bridge(ours.name);
        ours.time("ADD", &Call::of(&sandbox, "bridge", "ADD"), &request);
        settle();
        ours.run(&Call::of(&sandbox, "bridge", "DEL"), &request);
        settle();
        floor.time("ADD", &Call::of(&sandbox, "attach", "ADD"), &request);
        settle();
        host.ip("link delete floor0");
        settle();
        if number == 0 {
            ours.forget();
            floor.forget();
        }
    }
    let title = format!("bridge with host-local and its floor, {rounds} rounds in turns");
    report.times(&title, &[ours, floor]);
}
