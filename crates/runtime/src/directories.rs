//! The directories of a runtime.

use std::path::PathBuf;

use cni::SearchPath;

use crate::cache::Cache;

/// The directories of a runtime: configurations, plugins, cache.
#[derive(Debug, Clone)]
pub struct Directories {
    /// `NETCONFPATH`: the directory of network configurations.
    pub networks: PathBuf,
    /// `CNI_PATH`: the directories of plugins.
    pub plugins: SearchPath,
    /// `CNI_CACHE_DIR`: the directory whose `results` contains cached results.
    pub cache: Cache,
}
