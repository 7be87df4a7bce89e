//! Values that all parts of the agent share.

use runtime::Directories;

use crate::health::Health;

/// The runtime's directories and the health that all parts share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    /// The directories of the container runtime.
    pub directories: Directories,
    /// The state of all parts.
    pub health: Health,
}
