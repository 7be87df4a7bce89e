//! Follows the plugins' log files while they grow and are rotated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::log_file::{Line, LogFile};

/// Log files, each with the position up to which it was read. Keeps the files open, so that lines
/// are found that were written after the last reading and before a rotation.
#[derive(Debug, Default)]
pub struct Follower(BTreeMap<PathBuf, LogFile>);

impl Follower {
    /// Calls `handle` for all lines that were added to the file at `path` since the last call; at
    /// first, for all lines. A file that does not exist has no lines.
    ///
    /// # Errors
    /// The file cannot be read, or is a symbolic link, a pipe or a device, to which no plugin
    /// writes.
    pub(crate) fn read(
        &mut self,
        path: &Path,
        mut handle: impl FnMut(Line<'_>),
    ) -> anyhow::Result<()> {
        let action = || format!("read log file {}", path.display());
        let now = LogFile::open(path)?;
        if let Some(known) = self.0.get_mut(path) {
            known.read(&mut handle).with_context(action)?;
            let is_rotated = now.as_ref().map(|now| known.is(now).map(|it| !it));
            if !is_rotated
                .transpose()
                .with_context(action)?
                .unwrap_or(false)
            {
                return Ok(());
            }
        }
        if let Some(mut now) = now {
            now.read(&mut handle).with_context(action)?;
            self.0.insert(path.to_owned(), now);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;

    use super::*;

    #[test]
    fn each_line_counts_once_over_a_rotation_and_a_truncation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let append = |path: &Path, lines: &str| {
            let mut file = OpenOptions::new()
                .append(true)
                .create(true)
                .open(path)
                .unwrap();
            file.write_all(lines.as_bytes()).unwrap();
        };
        let mut follower = Follower::default();
        let mut lines = 0;
        let mut count = || {
            follower.read(&path, |_| lines += 1).unwrap();
            lines
        };
        assert_eq!(count(), 0, "there is no file");
        append(&path, "a\nb\nc");
        assert_eq!(count(), 2);
        append(&path, "c\n");
        assert_eq!((count(), count()), (3, 3));
        append(&path, "d\n");
        fs::rename(&path, directory.path().join("log.1")).unwrap();
        assert_eq!(count(), 4, "the file is renamed, and there is no new one");
        append(&directory.path().join("log.1"), "e\n");
        append(&path, "f\n");
        assert_eq!((count(), count()), (6, 6));
        fs::write(&path, "").unwrap();
        assert_eq!(count(), 6, "the file is empty");
        append(&path, "g\n");
        assert_eq!(count(), 7);
    }
}
