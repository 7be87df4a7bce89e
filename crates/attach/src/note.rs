//! Reports failures that do not make a verb fail.

/// Writes the error to standard error if `outcome` is one. Callers use this function for failures
/// after which the attachment still works.
pub fn note_failure<E: Into<anyhow::Error>>(outcome: Result<(), E>) {
    if let Err(error) = outcome {
        cni::note(format_args!("{:#}", error.into()));
    }
}
