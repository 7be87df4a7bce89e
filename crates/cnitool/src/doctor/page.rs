//! Findings as people read them, 80 columns wide, and as programs do.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use super::finding::{Finding, Level};

/// Writes `findings` in their order, and a last line that counts them.
///
/// # Errors
/// Those of `to`.
pub fn text(findings: &[Finding], to: &mut impl Write) -> io::Result<()> {
    for finding in findings {
        let mut words = wrapped(&finding.found).into_iter();
        let (style, level) = (style(finding.level), word(finding.level));
        let first = words.next().unwrap_or_default();
        let subject = finding.subject;
        writeln!(to, "{style}{level:8}{style:#} {subject:10} {first}")?;
        for line in words.chain(wrapped(&finding.means)) {
            writeln!(to, "{:MARGIN$}{line}", "")?;
        }
        let command = Style::new().bold();
        for line in finding.mend.lines() {
            writeln!(to, "    {command}{line}{command:#}")?;
        }
    }
    writeln!(to, "{}", summary(findings))
}

/// Writes `findings` as one JSON list.
///
/// # Errors
/// Those of `to`.
pub fn json(findings: &[Finding], to: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *to, findings)?;
    writeln!(to)
}

fn summary(findings: &[Finding]) -> String {
    let count = |level| findings.iter().filter(|it| it.level == level).count();
    let plural = |count: usize, word: &str| match count {
        1 => format!("1 {word}"),
        count => format!("{count} {word}s"),
    };
    format!(
        "{}, {}, {} ok",
        plural(count(Level::Problem), "problem"),
        plural(count(Level::Warning), "warning"),
        count(Level::Ok)
    )
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Warning => "warning",
        Level::Problem => "problem",
    }
}

fn style(level: Level) -> Style {
    let color = match level {
        Level::Ok => AnsiColor::Green,
        Level::Warning => AnsiColor::Yellow,
        Level::Problem => AnsiColor::Red,
    };
    color.on_default()
}

/// Lines that fit beside the margin; a word that does not fit has one of its own.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// In columns, of what is beside level and subject.
const MARGIN: usize = 20;
const WIDTH: usize = 80 - MARGIN;

#[cfg(test)]
mod tests {
    use super::*;

    fn page(findings: &[Finding]) -> String {
        let mut page = Vec::new();
        text(findings, &mut anstream::StripStream::new(&mut page)).unwrap();
        String::from_utf8(page).unwrap()
    }

    #[test]
    fn page_fits_a_terminal_and_ends_with_a_count() {
        let finding = Finding::problem("bridge", "cni0 has ".to_owned() + &"many ".repeat(20))
            .means("a pod more ".repeat(9))
            .mend("ip link show master cni0");
        let page = page(&[Finding::ok("kernel", "as it should be"), finding]);
        assert!(page.lines().all(|line| line.len() <= 80), "{page}");
        assert!(page.starts_with("ok       kernel     as it should be\nproblem  bridge     cni0"));
        assert!(page.contains("\n    ip link show master cni0\n"), "{page}");
        assert!(page.ends_with("\n1 problem, 0 warnings, 1 ok\n"), "{page}");
    }

    #[test]
    fn list_has_a_key_for_each_part() {
        let mut list = Vec::new();
        json(&[Finding::warning("disk", "full").mend("rm x")], &mut list).unwrap();
        let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
        let expected = serde_json::json!([{
            "level": "warning", "subject": "disk", "found": "full", "means": "", "mend": "rm x",
        }]);
        assert_eq!(list, expected);
    }
}
