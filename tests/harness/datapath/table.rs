//! Results: for each row the values of all sides, round by round.

use std::fmt::{self, Display, Formatter};

use serde_json::{Value, json};

use super::meter::Quantity;
use super::{Path, Side, Which};

/// All rows, in the order in which they were first measured.
#[derive(Debug)]
pub struct Table {
    sides: Vec<String>,
    rows: Vec<(Row, Vec<Vec<f64>>)>,
}

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pods: usize,
    path: Path,
    quantity: Quantity,
}

impl Row {
    pub(super) fn new(pods: usize, path: Path, quantity: Quantity) -> Self {
        Self {
            pods,
            path,
            quantity,
        }
    }
}

impl Table {
    pub(super) fn new(sides: &[Side]) -> Self {
        Self {
            sides: sides.iter().map(|side| side.name.clone()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a round: one value for each side.
    pub(super) fn note(&mut self, row: Row, values: Vec<f64>) {
        match self.rows.iter_mut().find(|(known, _)| *known == row) {
            Some((_, rounds)) => rounds.push(values),
            None => self.rows.push((row, vec![values])),
        }
    }

    /// Returns the rows as objects.
    pub fn to_json(&self) -> Vec<Value> {
        let rows = self.rows.iter().map(|(row, rounds)| {
            let sides = self.sides.iter().enumerate().map(|(side, name)| {
                let median = quartiles(rounds.iter().map(|it| it[side]).collect())[1];
                let speed = quartiles(row.speeds(rounds, side));
                json!({"side": name, "median": median, "speed": speed})
            });
            let sides: Vec<_> = sides.collect();
            json!({"case": row.to_string(), "unit": row.quantity.unit, "sides": sides})
        });
        rows.collect()
    }
}

impl Row {
    /// Returns, round by round, how fast a side is compared with the first one. More is better.
    fn speeds(&self, rounds: &[Vec<f64>], side: usize) -> Vec<f64> {
        let speed = |values: &Vec<f64>| {
            let ratio = values[side] / values[0];
            if self.quantity.more_is_better {
                ratio
            } else {
                1.0 / ratio
            }
        };
        rounds.iter().map(speed).collect()
    }
}

impl Display for Table {
    /// Shows the medians, and the speeds with their lower and upper quartiles.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:58}{:>10}", "", self.sides[0])?;
        for side in &self.sides[1..] {
            write!(f, "{side:>30}")?;
        }
        for (row, rounds) in &self.rows {
            let median = |side| quartiles(rounds.iter().map(|it| it[side]).collect())[1];
            write!(f, "\n{:58}{:>10}", row.to_string(), short(median(0)))?;
            for side in 1..self.sides.len() {
                let [low, middle, high] = quartiles(row.speeds(rounds, side));
                let spread = format!("{middle:.2} ({low:.2}-{high:.2})");
                write!(f, "{:>12}{spread:>18}", short(median(side)))?;
            }
        }
        writeln!(f)
    }
}

impl Display for Row {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Quantity { name, unit, .. } = self.quantity;
        let text = format!("{}, {}: {name}, {unit}", self.pods, self.path);
        f.pad(&text)
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bridged => "pod to pod",
            Self::Unseen => "pod to pod, unseen",
            Self::Host => "pod to host",
            Self::Out(Which::First) => "first pod out",
            Self::Out(Which::Last) => "last pod out",
            Self::In(Which::First) => "first port",
            Self::In(Which::Last) => "last port",
        })
    }
}

/// Returns a number with two decimals, or none if it is large.
fn short(value: f64) -> String {
    let decimals = if value < 1000.0 { 2 } else { 0 };
    format!("{value:.decimals$}")
}

/// Returns the lower quartile, the median and the upper quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}
