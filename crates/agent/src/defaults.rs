//! Default values of configuration keys.

/// Returns the default of a key that turns something on.
pub(crate) fn yes() -> bool {
    true
}
