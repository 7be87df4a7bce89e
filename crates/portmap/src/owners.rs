//! Directories that have one file for each owner in a list of attachments. The file is named after
//! the owner.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A directory with an empty file for each owner. It does not exist while there is no owner.
#[derive(Debug)]
pub(crate) struct Owners(pub PathBuf);

impl Owners {
    /// Adds `owner` if the directory exists. Returns whether the directory exists.
    pub fn join_existing(&self, owner: &str) -> anyhow::Result<bool> {
        let path = self.file(owner);
        match File::create(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("create {}", path.display())),
        }
    }

    /// Adds `owner` and creates the directory if needed. Tries again if another owner that leaves
    /// removes the directory at the same time.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn join(&self, owner: &str) -> anyhow::Result<()> {
        for _ in 0..ATTEMPTS {
            create_directory(&self.0)?;
            if self.join_existing(owner)? {
                return Ok(());
            }
        }
        anyhow::bail!("{} is removed again and again", self.0.display())
    }

    /// Removes `owner`, if it is in the list. The directory stays.
    ///
    /// # Errors
    /// The file exists and cannot be removed.
    pub fn remove(&self, owner: &str) -> anyhow::Result<()> {
        remove_file(&self.file(owner))
    }

    /// Returns all owners, sorted; none if the directory does not exist.
    pub fn all(&self) -> io::Result<BTreeSet<String>> {
        list(&self.0, owner_of)
    }

    fn file(&self, owner: &str) -> PathBuf {
        self.0.join(file_name(owner))
    }
}

/// Returns the owners of all files in a directory, sorted; none if the directory does not exist.
/// `owner_of` converts a file name to its owner.
pub(crate) fn list(
    directory: &Path,
    owner_of: impl Fn(&str) -> Option<String>,
) -> io::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if MISSING.contains(&error.kind()) => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let mut owners = BTreeSet::new();
    for entry in entries {
        owners.extend(entry?.file_name().to_str().and_then(&owner_of));
    }
    Ok(owners)
}

/// Creates a directory that all users may read, and its missing parent directories.
pub(crate) fn create_directory(path: &Path) -> anyhow::Result<()> {
    let created = DirBuilder::new().recursive(true).mode(0o755).create(path);
    created.with_context(|| format!("create {}", path.display()))
}

/// Removes a file, if it exists.
pub(crate) fn remove_file(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if MISSING.contains(&error.kind()) => Ok(()),
        // A read-only file system refuses to remove a missing file, too (EROFS).
        Err(error) if fs::exists(path).unwrap_or(true) => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the file name of an owner. No two owners have the same file name, because the parts of
/// an owner contain no colon.
pub(crate) fn file_name(owner: &str) -> String {
    owner.replace('/', ":")
}

/// Returns the owner of the file with this name; `None` if it is not the file of an owner.
pub(crate) fn owner_of(name: &str) -> Option<String> {
    let names = name.strip_prefix("cni:")?;
    Some(format!("cni:{}", names.replace(':', "/")))
}

/// Maximum number of attempts: more than the number of attachments that end at the same moment.
const ATTEMPTS: usize = 100;

/// Errors for a path without a file. The second is for a path below a file.
pub(crate) const MISSING: [ErrorKind; 2] = [ErrorKind::NotFound, ErrorKind::NotADirectory];
