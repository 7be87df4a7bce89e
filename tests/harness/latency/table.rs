//! Results: for each trial the outcomes of all sides, round by round.

use std::fmt::{self, Display, Formatter};

use serde_json::{Value, json};

use super::{Outcome, Side, Trial};

/// All rows, in the order in which they were first measured.
#[derive(Debug)]
pub struct Table {
    sides: Vec<String>,
    rows: Vec<(Trial, Vec<Vec<Outcome>>)>,
}

/// The smallest value, the median and the largest one.
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Table {
    pub(super) fn new(sides: &[Side]) -> Self {
        Self {
            sides: sides.iter().map(|side| side.name.clone()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a round: one outcome for each side.
    pub(super) fn note(&mut self, trial: Trial, outcomes: Vec<Outcome>) {
        match self.rows.iter_mut().find(|(known, _)| *known == trial) {
            Some((_, rounds)) => rounds.push(outcomes),
            None => self.rows.push((trial, vec![outcomes])),
        }
    }

    /// Returns the rows as objects.
    pub fn to_json(&self) -> Vec<Value> {
        let rows = self.rows.iter().map(|(trial, rounds)| {
            let sides = self.sides.iter().enumerate().map(|(side, name)| {
                let spread = |it: Option<Spread>| it.map(|it| [it.least, it.median, it.most]);
                json!({
                    "side": name,
                    "p50": spread(waits(rounds, side, 50)),
                    "p99": spread(waits(rounds, side, 99)),
                    "lost": spread(lost(rounds, side)),
                    "first interval": spread(first(rounds, side)),
                    "later intervals": spread(later(rounds, side)),
                })
            });
            json!({"case": trial.to_string(), "sides": sides.collect::<Vec<_>>()})
        });
        rows.collect()
    }

    fn write_waits(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let control = &self.sides[0];
        write!(f, "| rate | direction | load | {control}, p50 | p99 |")?;
        for side in &self.sides[1..] {
            write!(f, " {side}, p50 | p99 | lost, % |")?;
        }
        write!(f, "\n|{}", "---|".repeat(2 + 3 * self.sides.len()))?;
        for (trial, rounds) in &self.rows {
            write!(f, "\n| {trial} |")?;
            for side in 0..self.sides.len() {
                for percent in [50, 99] {
                    write!(f, " {} |", cell(waits(rounds, side, percent).as_ref()))?;
                }
                if side > 0 {
                    write!(f, " {} |", cell(lost(rounds, side).as_ref()))?;
                }
            }
        }
        writeln!(f)
    }

    fn write_passed(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "| rate | direction | load |")?;
        for side in &self.sides[1..] {
            write!(f, " {side}, first second | later seconds |")?;
        }
        write!(f, "\n|{}", "---|".repeat(1 + 2 * self.sides.len()))?;
        for (trial, rounds) in &self.rows {
            write!(f, "\n| {trial} |")?;
            for side in 1..self.sides.len() {
                let [first, later] =
                    [first(rounds, side), later(rounds, side)].map(|it| cell(it.as_ref()));
                write!(f, " {first} | {later} |")?;
            }
        }
        writeln!(f)
    }
}

impl Display for Table {
    /// Shows two tables in the format of the pages: what a request waits, and what passes. Each value
    /// is the median of all rounds, with the smallest and the largest one.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write_waits(f)?;
        writeln!(f)?;
        self.write_passed(f)
    }
}

/// Returns the milliseconds that `percent` of the requests did not exceed; for a limited side those
/// that it adds to the control of the same round.
fn waits(rounds: &[Vec<Outcome>], side: usize, percent: usize) -> Option<Spread> {
    let waits = rounds.iter().filter_map(|outcomes| {
        let own = outcomes[side].wait(percent)?;
        let control = outcomes[0].wait(percent)?;
        Some(if side == 0 { own } else { own - control })
    });
    Spread::of(waits.collect())
}

/// Returns the percentages of requests without an answer.
fn lost(rounds: &[Vec<Outcome>], side: usize) -> Option<Spread> {
    let lost = rounds.iter().map(|outcomes| outcomes[side].lost * 100.0);
    Spread::of(lost.collect())
}

/// Returns what passed in the first interval, in percent of the rate.
fn first(rounds: &[Vec<Outcome>], side: usize) -> Option<Spread> {
    let first = rounds.iter().map(|outcomes| outcomes[side].passed[0]);
    Spread::of(first.collect())
}

/// Returns what passed in all other intervals, in percent of the rate.
fn later(rounds: &[Vec<Outcome>], side: usize) -> Option<Spread> {
    let later = rounds
        .iter()
        .flat_map(|outcomes| &outcomes[side].passed[1..]);
    Spread::of(later.copied().collect())
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        Some(Self {
            least: *values.first()?,
            median: values[(values.len() - 1) / 2],
            most: *values.last()?,
        })
    }
}

fn cell(spread: Option<&Spread>) -> String {
    let Some(Spread {
        least,
        median,
        most,
    }) = spread
    else {
        return "–".into();
    };
    let decimals = usize::from(*median < 100.0);
    format!("{median:.decimals$} ({least:.decimals$} to {most:.decimals$})")
}
