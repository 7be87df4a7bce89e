//! Failures that do not fail a verb.

/// Reports a failure on standard error; the attachment works all the same.
pub fn note_failure<E: Into<anyhow::Error>>(outcome: Result<(), E>) {
    if let Err(error) = outcome {
        cni::note(format_args!("{:#}", error.into()));
    }
}
