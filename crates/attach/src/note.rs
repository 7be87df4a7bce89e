//! Logs failures that do not make a verb fail.

/// Writes the error to standard error if `outcome` is one. For failures in spite of which the
/// attachment works.
pub fn note_failure<E: Into<anyhow::Error>>(outcome: Result<(), E>) {
    if let Err(error) = outcome {
        cni::note(format_args!("{:#}", error.into()));
    }
}
