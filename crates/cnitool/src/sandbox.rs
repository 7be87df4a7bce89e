//! The path of a sandbox, and the container ID that follows from it.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, ensure};
use cni::ContainerId;
use sha2::{Digest as _, Sha512};

/// Returns `path` as an absolute path, without `.` and `..`. Does not resolve symbolic links,
/// because the sandbox of `cnitool del` may no longer exist.
pub fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    ensure!(!path.as_os_str().is_empty(), "NETNS: the path is empty");
    let absolute = std::path::absolute(path);
    let absolute = absolute.with_context(|| format!("resolve {}", path.display()))?;
    let mut clean = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => drop(clean.pop()),
            other => clean.push(other),
        }
    }
    Ok(clean)
}

/// Returns the container ID that `wanted` has instead of a path: what has no `/` and is no existing file.
pub fn named(wanted: &Path) -> Option<ContainerId> {
    let id = wanted.to_str().filter(|_| !wanted.exists());
    id.and_then(|it| it.parse().ok())
}

/// Returns the container ID for a sandbox to which no runtime gave one: `cnitool-` and the first 20
/// hexadecimal digits of the SHA-512 of the sandbox's path. `cnitool` of containernetworking/cni
/// derives the same ID.
pub fn container_id(netns: &Path) -> anyhow::Result<ContainerId> {
    let digits = sha512(netns.as_os_str().as_encoded_bytes());
    let name = format!("cnitool-{digits:.20}");
    name.parse().context("container ID")
}

/// Returns the SHA-512 in hexadecimal digits.
pub fn sha512(bytes: &[u8]) -> String {
    cni::hex(&Sha512::digest(bytes), usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected digits are the first that `printf /var/run/netns/testing | sha512sum` prints.
    #[test]
    fn container_id_is_the_one_of_the_upstream_tool() {
        let id = container_id(Path::new("/var/run/netns/testing")).unwrap();
        assert_eq!(id.as_str(), "cnitool-77383ca0a0715733ca6f");
    }

    #[test]
    fn paths_are_cleaned_without_looking_at_them() {
        let clean = |path: &str| absolute(Path::new(path)).unwrap();
        assert_eq!(clean("/run//netns/./a/../b/"), Path::new("/run/netns/b"));
        assert_eq!(clean("/../a"), Path::new("/a"));
        assert!(clean("a").is_absolute());
        assert!(absolute(Path::new("")).is_err());
    }
}
