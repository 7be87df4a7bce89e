//! Findings: what doctor found, how severe it is, and how to fix it.

pub use cni::quoted;
use node::Node;
use serde::Serialize;

/// Severity. A worse level is greater, so the maximum of several levels is the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No fault.
    Ok,
    /// Pods may have a network, but perhaps not as configured.
    Warning,
    /// Pods have no network, or will lose it.
    Problem,
}

impl Level {
    /// Returns the level of a fault that makes the network of `file` useless: a problem if runtimes
    /// use this file, otherwise a warning.
    pub fn of_file(node: &Node, file: &str) -> Self {
        match node.configuration.chosen() {
            Some(chosen) if chosen.name == file => Self::Problem,
            _ => Self::Warning,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub level: Level,
    /// What doctor found.
    pub message: String,
    /// What the fault does to pods; empty if that is obvious.
    pub impact: String,
    /// A command that fixes the fault or shows more about it; empty if there is no such command.
    pub fix: String,
}

impl Finding {
    /// Returns a finding without fault.
    pub fn ok(message: impl Into<String>) -> Self {
        Self::new(Level::Ok, message)
    }

    /// Returns a warning.
    pub fn warning(message: impl Into<String>) -> Self {
        Self::new(Level::Warning, message)
    }

    /// Returns a problem.
    pub fn problem(message: impl Into<String>) -> Self {
        Self::new(Level::Problem, message)
    }

    /// Returns a finding of this level.
    pub fn new(level: Level, message: impl Into<String>) -> Self {
        Self {
            level,
            message: message.into(),
            impact: String::new(),
            fix: String::new(),
        }
    }

    /// Returns the finding with its impact.
    pub fn impact(self, impact: impl Into<String>) -> Self {
        let impact = impact.into();
        Self { impact, ..self }
    }

    /// Returns the finding with this command as its fix.
    pub fn fix(self, fix: impl Into<String>) -> Self {
        let fix = fix.into();
        Self { fix, ..self }
    }
}

/// Returns `faults`. If there are none, returns one finding of level [`Level::Ok`] with `message`,
/// or no finding if `message` is `None`.
pub fn or_ok(faults: impl IntoIterator<Item = Finding>, message: Option<String>) -> Vec<Finding> {
    let mut findings: Vec<_> = faults.into_iter().collect();
    if findings.is_empty() {
        findings.extend(message.map(Finding::ok));
    }
    findings
}

/// Returns the first four items of `all`, separated by commas. If there are more, the text ends
/// with the number of the others: `and 5 more`.
pub fn some_of(all: impl IntoIterator<Item = impl ToString>) -> String {
    let mut all = all.into_iter();
    let named: Vec<_> = all.by_ref().take(NAMED).map(|it| it.to_string()).collect();
    let named = named.join(", ");
    match all.count() {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Returns the number and the word. The word is in the plural unless the number is 1.
pub fn count(number: usize, word: &str) -> String {
    match number {
        1 => format!("1 {word}"),
        _ if word.ends_with('s') => format!("{number} {word}es"),
        _ => format!("{number} {word}s"),
    }
}

const NAMED: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_short() {
        assert_eq!(some_of([1, 2]), "1, 2");
        assert_eq!(some_of([1, 2, 3, 4, 5, 6]), "1, 2, 3, 4 and 2 more");
    }
}
