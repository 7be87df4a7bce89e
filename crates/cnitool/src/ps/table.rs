//! Formats attachments as a table for people.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::row::{Limits, Row};
use crate::listing::{Listing, printable};

#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Table(pub Vec<Row>);

impl Listing for Table {
    /// Writes a line of headings and one line for each attachment.
    fn text(&self, to: &mut impl Write) -> io::Result<()> {
        let now = SystemTime::now();
        let rows = self.0.iter().map(|it| cells(it, now));
        let lines: Vec<_> = [HEADINGS.map(str::to_owned)]
            .into_iter()
            .chain(rows)
            .collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..HEADINGS.len()).map(width).collect();
        for line in &lines {
            let cells = line.iter().zip(&widths);
            let cells = cells.map(|(cell, width)| format!("{:width$}", printable(cell)));
            writeln!(to, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

fn cells(row: &Row, now: SystemTime) -> [String; 9] {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let container = text(&row.container).chars().take(CONTAINER).collect();
    let pod = row
        .pod
        .as_ref()
        .map(|it| format!("{}/{}", it.namespace, it.name));
    let addresses: Vec<_> = row.addresses.iter().map(ToString::to_string).collect();
    let ports: Vec<_> = row.ports.iter().map(String::as_str).collect();
    let age = row.since.and_then(|since| now.duration_since(since).ok());
    [
        text(&row.network),
        container,
        pod.unwrap_or_default(),
        text(&row.interface),
        addresses.join(","),
        text(&row.host_link),
        ports.join(","),
        limits(row.limits),
        age.map(self::age).unwrap_or_default(),
    ]
}

/// Formats the limits, ingress first.
fn limits(Limits { ingress, egress }: Limits) -> String {
    let direction = |name: &str, limit: Option<u64>| Some(format!("{name} {}", rate(limit?)));
    let limits = [direction("in", ingress), direction("out", egress)];
    let limits: Vec<_> = limits.into_iter().flatten().collect();
    limits.join(" ")
}

/// Formats a rate in the largest unit that represents it exactly.
fn rate(bits: u64) -> String {
    let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1000, "k")];
    let unit = units
        .into_iter()
        .find(|(unit, _)| bits >= *unit && bits.is_multiple_of(*unit));
    match unit {
        Some((unit, name)) => format!("{}{name}", bits / unit),
        None => bits.to_string(),
    }
}

/// Formats an age in its largest unit with a value above zero.
fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..86_400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

const HEADINGS: [&str; 9] = [
    "NETWORK",
    "CONTAINER",
    "POD",
    "INTERFACE",
    "ADDRESSES",
    "HOST LINK",
    "PORTS",
    "LIMITS",
    "AGE",
];

/// Digits of a container ID in the table, as in other tools; JSON has all.
const CONTAINER: usize = 13;

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
        let mut page = Vec::new();
        Table(vec![row]).text(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
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
