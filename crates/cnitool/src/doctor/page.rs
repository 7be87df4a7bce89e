//! Formats findings for a terminal, 80 columns wide, and derives the exit status.

use std::fmt;

use anstyle::{AnsiColor, Style};
use cni::page::wrapped;
use serde::Serialize;

use super::finding::{Finding, Level, count};
use crate::listing::printable;

/// Findings, the worst last.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Page(Vec<Entry>);

/// A finding, and the subject of its check in one word.
#[derive(Debug, Serialize)]
pub struct Entry {
    pub subject: &'static str,
    #[serde(flatten)]
    pub finding: Finding,
}

impl Page {
    /// Sorts the findings by level, in a stable way.
    pub fn of(mut entries: Vec<Entry>) -> Self {
        entries.sort_by_key(|it| it.finding.level);
        Self(entries)
    }

    /// Returns the exit status: 0, 1 if there are warnings, 2 if there are problems.
    pub fn status(&self) -> u8 {
        self.0.last().map_or(0, |it| it.finding.level as u8)
    }
}

impl fmt::Display for Page {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Entry { subject, finding } in &self.0 {
            let [message, impact] =
                [&finding.message, &finding.impact].map(|text| wrapped(&printable(text), MARGIN));
            let (level, color) = match finding.level {
                Level::Ok => ("ok", AnsiColor::Green),
                Level::Warning => ("warning", AnsiColor::Yellow),
                Level::Problem => ("problem", AnsiColor::Red),
            };
            let style = color.on_default();
            let message = message.trim_start();
            writeln!(to, "{style}{level:8}{style:#} {subject:10} {message}")?;
            if !impact.is_empty() {
                writeln!(to, "{impact}")?;
            }
            let command = Style::new().bold();
            for line in finding.fix.lines() {
                writeln!(to, "    {command}{}{command:#}", printable(line))?;
            }
        }
        let of = |level| self.0.iter().filter(|it| it.finding.level == level).count();
        let problems = count(of(Level::Problem), "problem");
        let warnings = count(of(Level::Warning), "warning");
        writeln!(to, "{problems}, {warnings}, {} ok", of(Level::Ok))
    }
}

/// The left margin. In the first line of a finding, the finding's level and subject replace it.
const MARGIN: &str = "                    ";

#[cfg(test)]
mod tests {
    use super::*;

    fn page<const N: usize>(findings: [(&'static str, Finding); N]) -> Page {
        Page::of(
            findings
                .map(|(subject, finding)| Entry { subject, finding })
                .into(),
        )
    }

    #[test]
    fn page_fits_a_terminal_and_ends_with_a_count() {
        let finding = Finding::problem("cni0 has ".to_owned() + &"many ".repeat(20))
            .impact("a pod more ".repeat(9))
            .fix("ip link show master cni0");
        let ok = Finding::ok("as it should be");
        let page = page([("bridge", finding), ("kernel", ok)]).to_string();
        let page = anstream::adapter::strip_str(&page).to_string();
        assert!(page.lines().all(|line| line.len() <= 80), "{page}");
        assert!(page.starts_with("ok       kernel     as it should be\nproblem  bridge     cni0"));
        assert!(page.contains("\n    ip link show master cni0\n"), "{page}");
        assert!(page.ends_with("\n1 problem, 0 warnings, 1 ok\n"), "{page}");
    }

    #[test]
    fn list_has_a_key_for_each_part() {
        let page = page([("disk", Finding::warning("full").fix("rm x"))]);
        let expected = serde_json::json!([{
            "level": "warning", "subject": "disk", "message": "full", "impact": "", "fix": "rm x",
        }]);
        assert_eq!(serde_json::to_value(page).unwrap(), expected);
    }

    #[test]
    fn status_is_that_of_the_worst() {
        let ok = || ("a", Finding::ok(""));
        let warning = || ("b", Finding::warning(""));
        let problem = ("c", Finding::problem(""));
        assert_eq!([page([]).status(), page([ok()]).status()], [0, 0]);
        assert_eq!(page([warning(), ok()]).status(), 1);
        assert_eq!(page([problem, warning(), ok()]).status(), 2);
    }
}
