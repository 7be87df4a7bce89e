//! The disk cache: keeps the result of each ADD until DEL.
//!
//! The files have libcni's names and format (`cachedInfo` in libcni/api.go), so this suite and
//! runtimes can read each other's files.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use cni::files::{self, if_present};
use cni::{AddResult, Attachment, NetworkName, SpecVersion};
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::conflist::Conflist;
use crate::parts;
use crate::sandbox::{Arguments, Sandbox};

/// Cache directories of libcni, which need not exist. The subdirectory `results` of each contains
/// cached results. New results are written to the first directory.
#[derive(Debug, Clone)]
pub struct Cache(pub Vec<PathBuf>);

/// What libcni caches for one attachment: its names, configuration, arguments and result.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Entry {
    kind: String,
    container_id: String,
    /// The configuration list, in base 64 (RFC 4648, section 4), as Go writes bytes in JSON.
    config: Option<String>,
    if_name: String,
    network_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    netns: String,
    /// The arguments that the runtime passed to the plugins.
    #[serde(flatten)]
    pub arguments: Arguments,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
}

impl Cache {
    /// Returns the entry of `attachment` in the first directory that has one; `None` if none has.
    ///
    /// # Errors
    /// The file exists and cannot be read, or is not an entry.
    pub fn read(&self, attachment: &Attachment) -> anyhow::Result<Option<Entry>> {
        let mut files = self.own_files(attachment);
        let read = files.find_map(|it| Entry::read(&it).transpose());
        read.transpose()
    }

    /// Finds the cached ADD of `sandbox`. Returns `sandbox` with the arguments in the entry of its
    /// attachment. Without such an entry, returns the cached sandbox with the same network,
    /// interface and namespace, because a runtime may have attached it under another container ID.
    /// Returns `None` if there is none either.
    ///
    /// # Errors
    /// A cache directory cannot be read.
    pub fn find(&self, sandbox: &Sandbox) -> anyhow::Result<Option<Sandbox>> {
        let wanted = &sandbox.attachment;
        // An entry that cannot be read counts as absent, so that DEL can continue.
        if let Ok(Some(entry)) = self.read(wanted) {
            let mut remembered = entry.sandbox(wanted);
            remembered.netns.clone_from(&sandbox.netns);
            return Ok(Some(remembered));
        }
        let remembered = self.of_network(&wanted.network)?;
        let mut sandboxes = remembered.iter().map(|(it, entry)| entry.sandbox(it));
        Ok(sandboxes.find(|it| {
            it.attachment.interface == wanted.interface && is_same_path(&it.netns, &sandbox.netns)
        }))
    }

    /// Writes the entry of `sandbox`, with the result of its ADD, to the first cache directory.
    ///
    /// # Errors
    /// No cache directory is configured, or the directory or the file cannot be written.
    pub fn write(
        &self,
        network: &Conflist,
        sandbox: &Sandbox,
        result: Value,
    ) -> anyhow::Result<()> {
        let path = self.files(&sandbox.attachment).next();
        let path = path.context("no cache directory is configured")?;
        let entry = Entry::new(network, sandbox, result);
        let write = || {
            let directory = path.parent().unwrap_or(&path);
            files::make_directory(directory, 0o700)?;
            let file = files::open_writable(&path, File::options().create(true).truncate(true))?;
            serde_json::to_writer(file, &entry).map_err(std::io::Error::from)
        };
        write().with_context(|| format!("write {}", path.display()))
    }

    /// Returns the modification time of the entry that [`Self::read`] reads; `None` if there is no
    /// entry or the time is unknown.
    pub fn written(&self, attachment: &Attachment) -> Option<SystemTime> {
        let mut files = self.own_files(attachment);
        files.find_map(|it| fs::metadata(it).ok())?.modified().ok()
    }

    /// Removes the entry of `attachment` from all directories.
    ///
    /// # Errors
    /// A file exists and cannot be removed.
    pub fn remove(&self, attachment: &Attachment) -> anyhow::Result<()> {
        self.own_files(attachment).try_for_each(|file| {
            let removed = if_present(fs::remove_file(&file)).map(drop);
            removed.with_context(|| format!("remove {}", file.display()))
        })
    }

    /// Returns all cached attachments of `network` with their entries. Skips files that are no
    /// entry or lack the attachment's names.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub fn of_network(&self, network: &NetworkName) -> anyhow::Result<Vec<(Attachment, Entry)>> {
        // Other programs may keep other files in the directory; these are skipped.
        let mut entries: Vec<_> = self.entries()?.into_iter().flatten().collect();
        entries.retain(|(attachment, _)| attachment.network == *network);
        Ok(entries)
    }

    /// Returns all cached attachments with their entries. If several directories have an entry of
    /// an attachment, the first directory counts, as for [`Self::read`]. For a file that is no
    /// entry or lacks the attachment's names, returns an error with the path. For example, files
    /// of old versions of libcni contain only a result.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub fn entries(&self) -> anyhow::Result<Vec<anyhow::Result<(Attachment, Entry)>>> {
        let mut paths = Vec::new();
        let mut names = HashSet::new();
        for directory in &self.0 {
            let found = parts::paths_in(&directory.join(RESULTS))?.into_iter();
            paths.extend(found.filter(|it| names.insert(it.file_name().map(OsStr::to_owned))));
        }
        let read = |path: &PathBuf| {
            let entry: Entry = serde_json::from_slice(&files::read(path)?)?;
            ensure!(entry.kind == KIND, "kind {:?} is not {KIND}", entry.kind);
            Ok((entry.attachment()?, entry))
        };
        let read = |path| read(path).with_context(|| path.display().to_string());
        Ok(paths.iter().map(read).collect())
    }

    /// Returns the error message for an attachment that has no entry in the cache.
    pub fn lacks(attachment: &Attachment) -> String {
        format!(
            "no result of {attachment} is cached: see cnitool ps --json, and set CNI_CACHE_DIR if the \
             runtime has a cache of its own"
        )
    }

    /// Returns the path that the attachment's entry has in each directory. The file need not exist.
    pub(crate) fn files(&self, attachment: &Attachment) -> impl Iterator<Item = PathBuf> {
        let (container, interface) = (&attachment.container, &attachment.interface);
        let name = format!("{}-{container}-{interface}", attachment.network);
        let directories = self.0.iter();
        directories.map(move |it| it.join(RESULTS).join(&name))
    }

    /// Returns the paths of [`Self::files`] without those of another attachment: container `b-c` of
    /// network `a` and container `c` of network `a-b` have the same file name.
    fn own_files(&self, attachment: &Attachment) -> impl Iterator<Item = PathBuf> {
        let named = |path: &PathBuf| Entry::read(path).ok()??.attachment().ok();
        let files = self.files(attachment);
        files.filter(move |path| named(path).is_none_or(|it| it == *attachment))
    }
}

impl Default for Cache {
    /// Returns the default directories of libcni and of Multus. Multus calls plugins itself, so it
    /// has a cache of its own.
    fn default() -> Self {
        Self(
            ["/var/lib/cni", "/var/lib/cni/multus"]
                .map(PathBuf::from)
                .into(),
        )
    }
}

impl Entry {
    /// Reads the entry in the file `path`; returns `None` if there is no such file.
    fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let read = if_present(files::read(path));
        let bytes = read.with_context(|| format!("read {}", path.display()))?;
        let entry = bytes.map(|it| serde_json::from_slice(&it).and_then(Self::from_json));
        let entry = entry.transpose();
        entry.with_context(|| format!("decode {}", path.display()))
    }

    fn new(network: &Conflist, sandbox: &Sandbox, result: Value) -> Self {
        let attachment = &sandbox.attachment;
        Self {
            kind: KIND.into(),
            container_id: attachment.container.to_string(),
            config: Some(BASE64_STANDARD.encode(&network.bytes)),
            if_name: attachment.interface.to_string(),
            network_name: attachment.network.to_string(),
            netns: sandbox.netns.to_string_lossy().into_owned(),
            arguments: sandbox.arguments.clone(),
            result: Some(result),
        }
    }

    /// Parses an entry. Old versions of libcni stored only the result, without the key `kind`. Such
    /// an entry has no names and no configuration.
    pub(crate) fn from_json(value: Value) -> serde_json::Result<Self> {
        match value.get("kind") {
            Some(kind) if kind == KIND => serde_json::from_value(value),
            Some(kind) => Err(serde_json::Error::custom(format!(
                "kind {kind} is not {KIND}"
            ))),
            None => Ok(Self {
                kind: KIND.into(),
                result: Some(value),
                ..Self::default()
            }),
        }
    }

    /// Returns the attachment that the entry names: network, container and interface.
    ///
    /// # Errors
    /// A name is invalid or missing. Entries of old versions of libcni have no names.
    pub fn attachment(&self) -> anyhow::Result<Attachment> {
        Ok(Attachment {
            network: self.network_name.parse()?,
            container: self.container_id.parse()?,
            interface: self.if_name.parse()?,
        })
    }

    /// Returns the path of the sandbox's namespace. Versions of libcni before 1.2 store the path
    /// only in the result. The path is empty if neither entry nor result contains it.
    pub fn netns(&self) -> &Path {
        if !self.netns.is_empty() {
            return Path::new(&self.netns);
        }
        let interfaces = self.result.iter().filter_map(|it| it.get("interfaces"));
        let interfaces = interfaces.filter_map(Value::as_array).flatten();
        let mut sandboxes = interfaces
            .filter(|it| it.get("name").and_then(Value::as_str) == Some(&self.if_name))
            .filter_map(|it| it.get("sandbox").and_then(Value::as_str));
        Path::new(sandboxes.find(|it| !it.is_empty()).unwrap_or_default())
    }

    /// Returns the network configuration that ADD used; `None` if the entry contains none. A list
    /// may have further plugins in `directory/NAME/*.conf`, where NAME is the list's name. Runtimes
    /// do not cache these, so this function reads the current files ([`crate::with_parts`]).
    ///
    /// # Errors
    /// The cached list, or a file of its directory, is invalid.
    pub fn network(&self, directory: &Path) -> anyhow::Result<Option<Conflist>> {
        let config = self.config.as_ref().filter(|text| !text.is_empty());
        let network = config.map(|text| {
            let bytes = BASE64_STANDARD.decode(text).context("config")?;
            let whole = parts::with_parts(bytes, directory);
            whole.and_then(Conflist::parse).context("config")
        });
        network.transpose()
    }

    /// Returns the network configuration that ADD used or, if the entry contains none, the current
    /// configuration of the network in `directory`.
    ///
    /// # Errors
    /// A list is invalid, or the network is no longer configured.
    pub fn network_or_current(&self, directory: &Path) -> anyhow::Result<Conflist> {
        let current = || Conflist::find(directory, &self.network_name);
        let network = self.network(directory)?.map_or_else(current, Ok);
        network.context("its entry in the cache has no configuration")
    }

    /// Returns the sandbox with which plugins are called again for `attachment`. Its namespace and
    /// arguments are those of ADD, from this entry.
    pub fn sandbox(&self, attachment: &Attachment) -> Sandbox {
        Sandbox {
            attachment: attachment.clone(),
            netns: self.netns().to_owned(),
            arguments: self.arguments.clone(),
        }
    }

    /// Returns the cached result of ADD in the format of `version`, converted if ADD used another
    /// version. Returns `None` if the entry has no result.
    ///
    /// # Errors
    /// The cached result is invalid.
    pub fn result(&self, version: SpecVersion) -> anyhow::Result<Option<Value>> {
        let Some(result) = &self.result else {
            return Ok(None);
        };
        let stored = result.get("cniVersion").and_then(Value::as_str);
        if stored == Some(version.as_str()) {
            return Ok(Some(result.clone()));
        }
        let read = cni::result::read(result.clone(), version, "cached result")?;
        Ok(Some(read.to_json(version)))
    }

    /// Returns the cached result of ADD; an empty result if the entry has no valid one.
    pub fn reported(&self) -> AddResult {
        let result = self.result.clone().unwrap_or_default();
        let read = cni::result::read(result, SpecVersion::CURRENT, "cached result");
        read.unwrap_or_default()
    }

    /// Returns the names of those interfaces in the cached result that are on the host, such as the
    /// bridge and the host's end of the veth pair.
    pub fn host_links(&self) -> Vec<String> {
        let mut interfaces = self.reported().interfaces;
        interfaces.retain(|it| it.sandbox.is_none());
        interfaces.into_iter().map(|it| it.name).collect()
    }
}

/// Returns whether both paths name the same file, such as `/var/run/x` and `/run/x`.
fn is_same_path(one: &Path, other: &Path) -> bool {
    let resolved = |path: &Path| fs::canonicalize(path).ok();
    one == other || resolved(one).is_some_and(|it| Some(it) == resolved(other))
}

const KIND: &str = "cniCacheV1";

/// The subdirectory of each cache directory with the cached results.
const RESULTS: &str = "results";

#[cfg(test)]
mod tests;
