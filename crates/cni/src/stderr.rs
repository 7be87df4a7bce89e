//! Standard error: messages for the operator. Only this module writes there.

use std::fmt::Display;
use std::io::Write as _;

/// Writes one line for readers of the runtime's log.
///
/// Errors are ignored: a closed or full standard error must not make a verb fail.
pub fn note(line: impl Display) {
    let line = format!("{line}\n");
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}
