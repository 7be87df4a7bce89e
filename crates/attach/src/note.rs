//! Logs failures that do not make a verb fail.

/// Logs a failure on standard error. The attachment works despite the failure.
pub fn note_failure<E: Into<anyhow::Error>>(outcome: Result<(), E>) {
    if let Err(error) = outcome {
        cni::note(format_args!("{:#}", error.into()));
    }
}
