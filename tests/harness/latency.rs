//! Measures how long a small packet waits for a limit beside a load, and how much passes the limit.
//!
//! Sides take turns, in a new random order each time: each run attaches a new pod, whose bucket is
//! full. One side is the control. It has no limit, but a load of the limit's rate. What a packet waits
//! there is the machine's own time, which the others subtract.

mod echo;
mod load;
mod side;
mod table;

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub use load::Load;
pub use side::Side;
pub use table::Table;

use crate::counter::Counter;
use crate::datapath::shuffle;
use crate::traffic::wait_until;
use crate::{Host, Place as _, Sandbox};
use echo::Echo;
use load::Streams;

/// Extent of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The sides; the first one is the control.
    pub sides: Vec<Side>,
    /// Limits in bit/s.
    pub rates: Vec<u64>,
    /// Turns of each side.
    pub rounds: u32,
    /// Time of one run.
    pub span: Span,
}

/// Time of a run.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Measured intervals.
    pub intervals: u32,
    /// Length of an interval.
    pub interval: Duration,
    /// How long answers may come after the last interval, while the load goes on.
    pub patience: Duration,
}

impl Span {
    /// A span that only shows that everything works.
    pub const QUICK: Self = Self {
        intervals: 2,
        interval: Duration::from_millis(150),
        patience: Duration::from_millis(300),
    };

    /// Returns a span of some seconds, measured one by one.
    pub fn seconds(count: u32) -> Self {
        Self {
            intervals: count,
            interval: Duration::from_secs(1),
            patience: Duration::from_secs(2),
        }
    }
}

/// The limited direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Towards the pod.
    Ingress,
    /// From the pod.
    Egress,
}

/// Whether something limits a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Nothing does, so the load keeps to the rate by itself.
    None,
    /// A plugin does, so the load is larger than the rate.
    Set,
}

/// What one run measures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// The limit in bit/s.
    pub rate: u64,
    /// Where the load goes.
    pub direction: Direction,
    /// What competes with the small packets.
    pub load: Load,
}

/// Two ends of a path.
#[derive(Debug, Clone, Copy)]
pub struct Line<'p> {
    /// Where load and requests come from.
    pub client: &'p Sandbox,
    /// Where they go.
    pub server: &'p Sandbox,
    /// Address of the server.
    pub address: &'p str,
    /// Link of the server, whose counters show what arrives.
    pub link: &'p str,
}

/// Result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Milliseconds from each request to its answer, in order of size.
    pub waits: Vec<f64>,
    /// Share of the requests without an answer.
    pub lost: f64,
    /// What arrived in each interval with all headers, in percent of the rate.
    pub passed: Vec<f64>,
}

/// Measures all trials and returns the table. Shows the table `so_far` after each round.
pub fn measure(host: &Host, plan: &Plan, so_far: impl Fn(&Table)) -> Table {
    let outside = host.outside();
    outside.ip("route add default via 192.0.2.1");
    let mut table = Table::new(&plan.sides);
    for _ in 0..plan.rounds {
        for trial in plan.rates.iter().flat_map(|rate| Trial::of(*rate)) {
            let mut order: Vec<_> = (0..plan.sides.len()).collect();
            shuffle(&mut order);
            let mut outcomes = vec![None; order.len()];
            for number in order {
                let side = &plan.sides[number];
                outcomes[number] = Some(trial.take(host, (side, &outside), plan.span));
            }
            table.note(trial, outcomes.into_iter().flatten().collect());
        }
        so_far(&table);
    }
    table
}

impl Trial {
    /// Returns all trials of a rate.
    fn of(rate: u64) -> impl Iterator<Item = Self> {
        let directions = [Direction::Ingress, Direction::Egress];
        directions.into_iter().flat_map(move |direction| {
            [Load::Tcp, Load::Udp].map(|load| Self {
                rate,
                direction,
                load,
            })
        })
    }

    /// Runs it with a new pod of a side.
    fn take(&self, host: &Host, (side, outside): (&Side, &Sandbox), span: Span) -> Outcome {
        let pod = side.attach(host, self.rate);
        let outcome = match self.direction {
            Direction::Ingress => self.over(
                &Line {
                    client: outside,
                    server: &pod.sandbox,
                    address: &pod.address,
                    link: "eth0",
                },
                side.limit(),
                span,
            ),
            Direction::Egress => self.over(
                &Line {
                    client: &pod.sandbox,
                    server: outside,
                    address: "192.0.2.2",
                    link: "outside",
                },
                side.limit(),
                span,
            ),
        };
        pod.detach();
        outcome
    }

    /// Runs it over an existing path.
    pub fn over(&self, line: &Line<'_>, limit: Limit, span: Span) -> Outcome {
        let streams = Streams::open(line, self, limit);
        let echo = Echo::open(line, self.rate);
        let mut counter = Counter::of(line.server, line.link);
        let (loading, asking) = (AtomicBool::new(true), AtomicBool::new(true));
        thread::scope(|scope| {
            let mut before = counter.read();
            let start = before.1;
            streams.start(scope, &loading);
            let answers = echo.start(scope, (&asking, &loading), span.patience);
            let ends = (1..=span.intervals).map(|it| start + span.interval * it);
            let passed = ends.map(|end| {
                wait_until(end);
                let now = counter.read();
                let share = self.percent(now.0 - before.0, now.1 - before.1);
                before = now;
                share
            });
            let passed = passed.collect();
            asking.store(false, Ordering::Relaxed);
            let (waits, lost) = answers.join().unwrap();
            loading.store(false, Ordering::Relaxed);
            Outcome {
                waits,
                lost,
                passed,
            }
        })
    }

    /// Returns how many percent of the rate some bytes are.
    fn percent(&self, bytes: u64, time: Duration) -> f64 {
        let [bytes, rate] = [bytes, self.rate].map(|it| f64::from(u32::try_from(it).unwrap()));
        bytes * 8.0 * 100.0 / time.as_secs_f64() / rate
    }
}

impl Outcome {
    /// Returns the milliseconds that `percent` of the answered requests did not exceed.
    pub fn wait(&self, percent: usize) -> Option<f64> {
        let last = self.waits.len().checked_sub(1)?;
        Some(self.waits[last * percent / 100])
    }
}

impl Display for Trial {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (rate, unit) = match self.rate {
            rate if rate >= 1_000_000 => (rate / 1_000_000, "Mbit/s"),
            rate => (rate / 1000, "kbit/s"),
        };
        let direction = match self.direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        let load = match self.load {
            Load::Tcp => "four TCP flows",
            Load::Udp => "UDP, 1.2 times the rate",
        };
        write!(f, "{rate} {unit} | {direction} | {load}")
    }
}
