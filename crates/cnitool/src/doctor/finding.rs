//! What was found, how bad it is, and what to do about it.

use serde::Serialize;

/// How bad it is; the worst is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Pods may have a network, but not the one that somebody expects.
    Warning,
    /// Pods have no network, or lose it.
    Problem,
}

/// One line of the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was looked at, in a word.
    pub subject: &'static str,
    /// What is there.
    pub found: String,
    /// What follows from it; nothing where that is plain.
    pub means: String,
    /// The command that mends it; nothing where nothing is to be mended, or only people can.
    pub mend: String,
}

impl Finding {
    /// All is well.
    pub fn ok(subject: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Ok, subject, found)
    }

    /// Somebody should look at it.
    pub fn warning(subject: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Warning, subject, found)
    }

    /// Somebody has to mend it.
    pub fn problem(subject: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Problem, subject, found)
    }

    /// As bad as `level` says.
    pub fn new(level: Level, subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            level,
            subject,
            found: found.into(),
            means: String::new(),
            mend: String::new(),
        }
    }

    /// The same, with what follows from it.
    pub fn means(self, means: impl Into<String>) -> Self {
        let means = means.into();
        Self { means, ..self }
    }

    /// The same, with the command that mends it.
    pub fn mend(self, mend: impl Into<String>) -> Self {
        let mend = mend.into();
        Self { mend, ..self }
    }
}

/// The first of `all` in words, and how many more there are.
pub fn some_of<T: ToString>(all: &[T]) -> String {
    let named: Vec<_> = all.iter().take(NAMED).map(ToString::to_string).collect();
    let named = named.join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// `word` as a shell takes it, whatever is in it.
pub fn quoted(word: &(impl ToString + ?Sized)) -> String {
    let word = word.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-/:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

const NAMED: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_see_more() {
        assert_eq!(quoted("eth0"), "eth0");
        assert_eq!(quoted("$(x)"), "'$(x)'");
        assert_eq!(quoted("a'b"), r"'a'\''b'");
    }

    #[test]
    fn long_lists_are_cut_short() {
        assert_eq!(some_of(&[1, 2]), "1, 2");
        assert_eq!(some_of(&[1, 2, 3, 4, 5, 6]), "1, 2, 3, 4 and 2 more");
    }
}
