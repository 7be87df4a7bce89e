//! Values that all parts of the agent share.

use runtime::Directories;

use crate::health::Health;

/// The directories of the container runtime, and the state of the agent's parts.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    /// The directories of the container runtime.
    pub directories: Directories,
    /// Which parts of the agent fail, and why.
    pub health: Health,
}
