//! `ps`: lists attachments, as cached results, links, elements of `nf_tables` and leases show them, as
//! a table for people or as JSON.

mod row;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use cni::note;
use itertools::Itertools as _;
use node::Node;
use runtime::Directories;
use serde::Serialize;

use self::row::{Limits, Row};
use crate::listing::printable;

/// Returns each attachment that has a cached result, a link, an element of `nf_tables` or a lease.
/// Reports on standard error which parts of the node cannot be read.
pub fn ps(directories: &Directories) -> Table {
    let node = Node::attachments(directories);
    for (_, reason) in &node.unread {
        note!("cnitool: not read: {reason}");
    }
    Table {
        rows: Row::all(&node),
        is_partial: !node.unread.is_empty(),
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Table {
    pub rows: Vec<Row>,
    /// Whether a part of the node could not be read.
    #[serde(skip)]
    pub is_partial: bool,
}

impl fmt::Display for Table {
    /// Writes a line of headings and one line for each attachment.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = COLUMNS.map(|(heading, _)| heading.to_owned());
        let rows = self.rows.iter();
        let rows = rows.map(|row| COLUMNS.map(|(_, cell)| cell(row)));
        let lines: Vec<_> = [headings].into_iter().chain(rows).collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..COLUMNS.len()).map(width).collect();
        for line in &lines {
            let cells = line.iter().zip(&widths);
            let mut cells = cells.map(|(cell, width)| format!("{:width$}", printable(cell)));
            writeln!(to, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// The heading of a column, and a function that returns the column's text for an attachment.
type Column = (&'static str, fn(&Row) -> String);

const COLUMNS: [Column; 10] = [
    ("NETWORK", |it| text(it.network.as_ref())),
    ("CONTAINER", |it| {
        format!("{:.CONTAINER$}", text(it.container.as_ref()))
    }),
    ("POD", |row| {
        let pod = row.pod.as_ref();
        text(pod.map(|it| format!("{}/{}", it.namespace, it.name)))
    }),
    ("INTERFACE", |it| text(it.interface.as_ref())),
    ("STATE", |it| it.state.to_string()),
    ("ADDRESSES", |it| list(&it.addresses)),
    ("HOST LINK", |it| text(it.host_link.as_ref())),
    ("PORTS", |it| list(&it.ports)),
    ("LIMITS", |it| limits(it.limits)),
    ("AGE", |row| {
        text(row.since.and_then(|it| it.elapsed().ok()).map(age))
    }),
];

/// Number of digits of a container ID that the table shows, as in `crictl ps`. The JSON output has
/// all digits.
const CONTAINER: usize = 13;

fn text(value: Option<impl ToString>) -> String {
    value.map(|it| it.to_string()).unwrap_or_default()
}

fn list(items: &BTreeSet<impl fmt::Display>) -> String {
    items.iter().join(",")
}

fn limits(Limits { ingress, egress }: Limits) -> String {
    let direction = |name, limit: Option<u64>| Some(format!("{name} {}", rate(limit?)));
    let limits = [direction("in", ingress), direction("out", egress)];
    limits.iter().flatten().join(" ")
}

/// Formats a rate in the largest unit that represents it exactly.
fn rate(bits: u64) -> String {
    let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1000, "k")];
    let is_exact = |unit| bits >= unit && bits.is_multiple_of(unit);
    match units.into_iter().find(|it| is_exact(it.0)) {
        Some((unit, name)) => format!("{}{name}", bits / unit),
        None => bits.to_string(),
    }
}

/// Formats an age in one unit, rounded down, such as `59s` or `3d`.
fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..86_400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_what_is_not_known_is_blank() {
        let row = Row {
            network: Some("pods".to_owned()),
            container: Some("0123456789abcdef".to_owned()),
            ports: ["8080:80/tcp", "8053:53/udp"].map(str::to_owned).into(),
            ..Row::default()
        };
        let table = Table {
            rows: vec![row],
            is_partial: false,
        };
        let page = table.to_string();
        let [heading, line] = page.lines().collect::<Vec<_>>().try_into().unwrap();
        let (heading, line): (&str, &str) = (heading, line);
        assert_eq!(heading.find("PORTS"), line.find("8053:53/udp,8080:80/tcp"));
        assert!(line.starts_with("pods     0123456789abc  "), "{page}");
    }

    #[test]
    fn rates_and_ages_have_short_names() {
        let rates = [10_000_000, 1_500_000, 999, 2_000_000_000].map(rate);
        assert_eq!(rates, ["10M", "1500k", "999", "2G"]);
        let ages = [59, 60, 7199, 86_400 * 3].map(|it| age(Duration::from_secs(it)));
        assert_eq!(ages, ["59s", "1m", "1h", "3d"]);
        let one = Limits {
            ingress: None,
            egress: Some(8),
        };
        assert_eq!(limits(one), "out 8");
    }
}
