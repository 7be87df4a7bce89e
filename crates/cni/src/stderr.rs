//! Standard error is for people; this is the one place that writes it.

use std::fmt::Display;
use std::io::Write as _;

/// Writes one line for whoever reads the runtime's log.
///
/// A standard error that is closed or full is no reason to fail, so nothing is returned.
pub fn note(line: impl Display) {
    let line = format!("{line}\n");
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}
