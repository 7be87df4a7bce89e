//! The configuration file: a JSON object with the section `runtime` and a section for each part of
//! the agent (`cluster`, `devices`, `gc`, `metrics`, `repair`, `uplink`). A part without a section does not
//! run.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cni::SearchPath;
use runtime::{Cache, Directories};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::{cluster, devices, gc, http, repair, uplink};

/// The content of the agent's configuration file. A part whose section is `None` does not run.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    /// Where the container runtime keeps network configurations, plugins and cached results.
    #[serde(default)]
    pub runtime: RuntimePaths,
    /// The part that makes routes to the pods of other nodes; `None` if it does not run.
    pub cluster: Option<cluster::Config>,
    /// The part that offers bandwidth and `/dev/net/tun` to the kubelet as devices; `None` if it
    /// does not run.
    pub devices: Option<devices::Config>,
    /// The part that removes what dead sandboxes left on the node; `None` if it does not run.
    pub gc: Option<gc::Config>,
    /// The part that serves metrics and health over HTTP; `None` if it does not run.
    pub metrics: Option<http::Config>,
    /// The part that restores what other programs delete from the suite's `nf_tables` tables;
    /// `None` if it does not run.
    pub repair: Option<repair::Config>,
    /// The part that reports changes of the node's uplinks; `None` if it does not run.
    pub uplink: Option<uplink::Config>,
}

/// The directories that the container runtime uses.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RuntimePaths {
    /// The directory of network configurations.
    pub conf_dir: PathBuf,
    /// The directories of plugins.
    pub bin_dirs: Vec<String>,
    /// The directories of libcni's cache. Each one has a subdirectory `results`.
    #[serde(alias = "cacheDir", deserialize_with = "one_or_more")]
    pub cache_dirs: Vec<PathBuf>,
}

impl Config {
    /// Reads the configuration file at `path`.
    ///
    /// # Errors
    /// The file cannot be read. A key is unknown or has a wrong value; the error names the line.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = cni::files::read(path).with_context(|| format!("read {}", path.display()))?;
        let mut json = serde_json::Deserializer::from_slice(&text);
        let config = serde_path_to_error::deserialize(&mut json);
        let config = config.with_context(|| path.display().to_string())?;
        json.end().with_context(|| path.display().to_string())?;
        Ok(config)
    }
}

impl RuntimePaths {
    /// Returns the directories in the form that calls of plugins need.
    pub fn directories(&self) -> Directories {
        Directories {
            networks: self.conf_dir.clone(),
            plugins: SearchPath::parse(&self.bin_dirs.join(":")),
            cache: Cache(self.cache_dirs.clone()),
        }
    }
}

impl Default for RuntimePaths {
    fn default() -> Self {
        Self {
            conf_dir: PathBuf::from("/etc/cni/net.d"),
            bin_dirs: vec!["/opt/cni/bin".to_owned()],
            cache_dirs: Cache::default().0,
        }
    }
}

/// Reads one path, or a non-empty list of paths.
fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a path or a list of paths")]
    enum Paths {
        One(PathBuf),
        More(Vec<PathBuf>),
    }
    match Paths::deserialize(from)? {
        Paths::One(path) => Ok(vec![path]),
        Paths::More(paths) if paths.is_empty() => Err(D::Error::custom("the list is empty")),
        Paths::More(paths) => Ok(paths),
    }
}
