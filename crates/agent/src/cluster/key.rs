//! The node's WireGuard key, in a file that only root can read.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cluster::{PrivateKey, PublicKey};
use cni::files::{self, if_present};
use cni::note;

use super::config::{Config, Mode};
use super::saved;

/// The key of a node, and what the other nodes shall know.
#[derive(Debug)]
pub(super) struct Keys {
    /// The key to use now.
    pub own: PrivateKey,
    /// The key to announce: another one while the own key is about to be replaced.
    pub announced: PrivateKey,
}

/// What the API server has.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    /// The key that this node has announced.
    pub own: Option<PublicKey>,
    /// The keys of other nodes that this one must not use.
    pub others: BTreeSet<PublicKey>,
}

/// Reads the node's key, and makes one if there is none. If another key is prepared, that one is to be
/// announced. Once the API server has it, the other nodes know it, too, and it replaces the own key.
///
/// # Errors
/// A file cannot be read or written, or is no key.
pub(super) fn load(path: &Path, announced: &Announcements) -> anyhow::Result<Keys> {
    let prepared = prepared(path);
    let next = read_own(&prepared, announced)?;
    if let Some(own) = next.clone().filter(|it| Some(it.public()) == announced.own) {
        let renamed = fs::rename(&prepared, path).and_then(|()| keep_directory(path));
        renamed.with_context(|| format!("rename {} to {}", prepared.display(), path.display()))?;
        let announced = own.clone();
        return Ok(Keys { own, announced });
    }
    let own = match read_own(path, announced)? {
        Some(own) => own,
        None => make(path)?,
    };
    let announced = next.unwrap_or_else(|| own.clone());
    Ok(Keys { own, announced })
}

/// Prepares another key, with which the running agent replaces the node's key. Returns a line about it.
///
/// # Errors
/// The mode is another one, or the file cannot be written.
pub(crate) fn rotate(config: &Config) -> anyhow::Result<String> {
    anyhow::ensure!(config.mode == Mode::Wireguard, "the mode is not wireguard");
    let file = prepared(&config.key_file());
    let key = match read(&file)? {
        Some(key) => key,
        None => make(&file)?,
    };
    let public = key.public();
    Ok(format!(
        "prepared the key {public}: the agent announces it within 30 s, and then uses it\n"
    ))
}

/// Removes the keys. Returns a line for each file.
///
/// # Errors
/// A file cannot be removed.
pub(super) fn remove(path: &Path) -> anyhow::Result<Vec<String>> {
    saved::remove_unfinished(path)?;
    let mut lines = Vec::new();
    for file in [path.to_owned(), prepared(path)] {
        let removed = if_present(fs::remove_file(&file));
        let removed = removed.with_context(|| format!("remove {}", file.display()))?;
        lines.extend(removed.map(|()| format!("removed {}", file.display())));
    }
    Ok(lines)
}

fn make(path: &Path) -> anyhow::Result<PrivateKey> {
    let key = PrivateKey::random()?;
    let text = key.secret_text() + "\n";
    saved::replace(path, text.as_bytes(), SECRET)?;
    keep_directory(path)?;
    Ok(key)
}

/// Reads a key. Deletes one of another node, whose disk was copied.
fn read_own(path: &Path, announced: &Announcements) -> anyhow::Result<Option<PrivateKey>> {
    let key = read(path)?;
    let is_copied = |it: &PrivateKey| announced.others.contains(&it.public());
    if !key.as_ref().is_some_and(is_copied) {
        return Ok(key);
    }
    fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    note(format_args!(
        "cluster: {} had the key of another node, as after a copy of its disk: deleted it",
        path.display()
    ));
    Ok(None)
}

fn read(path: &Path) -> anyhow::Result<Option<PrivateKey>> {
    let parse = |content: Vec<u8>| {
        let text = String::from_utf8(content).map_err(|_| ErrorKind::InvalidData)?;
        let key = text.trim().parse::<PrivateKey>();
        key.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    };
    let read = if_present(files::read(path)).and_then(|it| it.map(parse).transpose());
    read.with_context(|| format!("read {}; if it is damaged, delete it", path.display()))
}

/// Writes the directory of a file to disk, so that the file survives a power failure.
fn keep_directory(path: &Path) -> io::Result<()> {
    path.parent()
        .map_or(Ok(()), |it| File::open(it)?.sync_all())
}

/// Returns the file of the key that is about to replace the one in `path`.
fn prepared(path: &Path) -> PathBuf {
    path.with_added_extension("next")
}

/// Mode of the files.
const SECRET: u32 = 0o600;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn announced(key: &PrivateKey) -> Announcements {
        Announcements {
            own: Some(key.public()),
            ..Announcements::default()
        }
    }

    #[test]
    fn prepared_key_replaces_the_own_one_after_its_announcement() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster/key");
        let first = load(&path, &Announcements::default()).unwrap();
        assert_eq!(first.announced, first.own);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, SECRET);
        let again = load(&path, &announced(&first.own)).unwrap();
        assert_eq!(again.own, first.own);
        let next = make(&prepared(&path)).unwrap();
        let waiting = load(&path, &announced(&first.own)).unwrap();
        assert_eq!((&waiting.own, &waiting.announced), (&first.own, &next));
        for _ in 0..2 {
            let replaced = load(&path, &announced(&next)).unwrap();
            assert_eq!(replaced.announced, next);
            assert_eq!(replaced.own, next);
            assert!(!prepared(&path).exists());
        }
        assert_eq!(remove(&path).unwrap().len(), 1);
        assert_ne!(load(&path, &announced(&next)).unwrap().own, next);
    }

    #[test]
    fn key_of_another_node_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let copied = make(&path).unwrap();
        let next = make(&prepared(&path)).unwrap();
        let announced = Announcements {
            own: None,
            others: [copied.public(), next.public()].into(),
        };
        let keys = load(&path, &announced).unwrap();
        assert!(keys.own != copied && keys.own == keys.announced);
        assert_eq!(load(&path, &announced).unwrap().own, keys.own);
    }

    #[test]
    fn damaged_key_is_kept_and_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, "c2VjcmV0\n").unwrap();
        let error = format!("{:#}", load(&path, &Announcements::default()).unwrap_err());
        assert!(
            error.contains("is no WireGuard key") && !error.contains("c2VjcmV0"),
            "{error}"
        );
        assert!(path.exists());
    }
}
