//! Standard error: messages for the operator. Only this module writes there.

use std::fmt::Display;
use std::io::Write as _;

/// Writes one line to standard error, which runtimes copy to their log.
///
/// Ignores errors, because a closed or full standard error must not make a verb fail.
pub fn note(line: impl Display) {
    let line = format!("{line}\n");
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}

/// Writes one line as the function of this name does, with the arguments of [`format!`].
#[macro_export]
macro_rules! note {
    ($($line:tt)*) => {
        $crate::note(::std::format_args!($($line)*))
    };
}

/// Writes the error to standard error if `outcome` is one. For failures that must not make the verb
/// fail.
pub fn note_failure(outcome: Result<(), impl Into<anyhow::Error>>) {
    if let Err(error) = outcome {
        note(format_args!("{:#}", error.into()));
    }
}

/// Returns the value of `outcome`. If `outcome` is an error, writes the error and `consequence` to
/// standard error, and returns `None`.
pub fn or_note<T>(outcome: Result<T, impl Into<anyhow::Error>>, consequence: &str) -> Option<T> {
    let noted = |error: anyhow::Error| note(format_args!("{error:#}; {consequence}"));
    outcome.map_err(Into::into).map_err(noted).ok()
}

/// Consequence for [`or_note`] if the caller ignores the error.
pub const GOING_ON: &str = "going on without it";
