//! TOML files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use cni::files::{self, if_present};
use serde::de::DeserializeOwned;
use toml::Value;

/// A TOML file.
#[derive(Debug)]
pub struct Document {
    pub path: PathBuf,
    root: Value,
}

impl Document {
    /// Reads a file; `None` if it does not exist.
    pub fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let read = || format!("read {}", path.display());
        let Some(bytes) = if_present(files::read(path)).with_context(read)? else {
            return Ok(None);
        };
        let text = str::from_utf8(&bytes).with_context(read)?;
        let root = toml::from_str(text).map_err(|error: toml::de::Error| {
            let start = error.span().map_or(0, |it| it.start);
            let line = text.get(..start).unwrap_or_default().matches('\n').count() + 1;
            let (path, message) = (path.display(), error.message());
            anyhow!("{path} is not valid TOML: line {line}: {message}")
        })?;
        let path = path.to_owned();
        Ok(Some(Self { path, root }))
    }

    /// Returns the value below these keys; `None` if the file does not have it.
    ///
    /// # Errors
    /// The value has another type.
    pub fn get<T: DeserializeOwned>(&self, keys: &[&str]) -> anyhow::Result<Option<T>> {
        let mut keys_left = keys.iter();
        let value = keys_left.try_fold(&self.root, |value, key| value.get(*key));
        let value = value.map(|it| it.clone().try_into::<T>());
        let what = || format!("{}: {}", self.path.display(), keys.join("."));
        value.transpose().with_context(what)
    }
}
