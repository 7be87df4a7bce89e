//! Follows the plugins' log files while they grow and are rotated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{io, mem};

use anyhow::Context as _;

use crate::log_file::{Handle, LogFile};
use crate::rotated::missed;

/// Log files, each with the position up to which this process has read it.
///
/// If a rotation renames a file, the follower keeps the file open and reads the rest of it later.
/// If another rotation follows before the next reading, it renames a second file, which the
/// follower has never opened. The follower finds this file beside the log, unless it is compressed:
/// then its lines are lost.
///
/// If a rotation copies and truncates a file, the follower reads the rest from the copy. Then the
/// lines that a plugin writes between the copy and the truncation are lost. The whole rest is lost
/// if the copy is compressed before the next reading.
#[derive(Debug, Default)]
pub(crate) struct Follower(BTreeMap<PathBuf, Followed>);

#[derive(Debug)]
struct Followed {
    now: LogFile,
    /// The file that the last rotation renamed. A plugin that opened it before the rotation may
    /// still append a line.
    before: Option<LogFile>,
}

impl Follower {
    /// Calls `handle` for each line that was added to the file at `path` since the last call. The
    /// first call handles all lines. A file that does not exist has no lines.
    ///
    /// # Errors
    /// The file cannot be read, or is a symbolic link, a pipe or a device, to which no plugin
    /// writes.
    pub fn read(&mut self, path: &Path, handle: Handle<'_>) -> anyhow::Result<()> {
        let found = LogFile::open(path)?;
        let read = match (self.0.get_mut(path), found) {
            (Some(followed), found) => followed.read(path, found, handle),
            (None, Some(mut now)) => now.read(handle).map(|()| {
                let followed = Followed { now, before: None };
                self.0.insert(path.to_owned(), followed);
            }),
            (None, None) => Ok(()),
        };
        read.with_context(|| format!("read log file {}", path.display()))
    }
}

impl Followed {
    /// Reads what was added to the log. `found` is the file that has the log's name now; `None` if
    /// there is no such file.
    fn read(&mut self, log: &Path, found: Option<LogFile>, handle: Handle<'_>) -> io::Result<()> {
        if let Some(mut before) = self.before.take() {
            before.read(handle)?;
        }
        if self.now.is_unread() {
            // No line of `self.now` was read yet, so `is_whole` below cannot detect a truncation.
            // Rotations may have copied lines of this file to other files, which are read here.
            let after = read_missed(log, [&self.now; 2], handle)?;
            self.now.begin(after);
        }
        let is_whole = self.now.is_whole()?;
        if is_whole {
            self.now.read(handle)?;
        }
        let new = found.map(|it| Ok::<_, io::Error>((self.now.is(&it)?, it)));
        let new = new.transpose()?.filter(|(is_same, _)| !is_same);
        if is_whole && new.is_none() {
            return Ok(());
        }
        let named = new.as_ref().map_or(&self.now, |(_, new)| new);
        let after = read_missed(log, [&self.now, named], handle)?;
        if let Some((_, new)) = new {
            self.before = Some(mem::replace(&mut self.now, new));
        }
        self.now.begin(after);
        self.now.read(handle)
    }
}

/// Calls `handle` for each unread line in the files to which rotations moved or copied the log.
/// [`missed`] finds these files from `known` and `now`. Returns the time of the last line that was
/// read from any file of the log; `None` if unknown.
fn read_missed(
    log: &Path,
    [known, now]: [&LogFile; 2],
    handle: Handle<'_>,
) -> io::Result<Option<String>> {
    let mut after = known.last_time();
    for mut file in missed(log, known, now) {
        file.read(handle)?;
        after = file.last_time().or(after);
    }
    Ok(after)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;

    use tempfile::TempDir;

    use super::*;

    /// A log in a directory, and a reader that counts its lines.
    struct Scene {
        directory: TempDir,
        follower: Follower,
        lines: usize,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                directory: tempfile::tempdir().unwrap(),
                follower: Follower::default(),
                lines: 0,
            }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn append(&self, name: &str, text: &str) {
            let mut options = OpenOptions::new();
            let file = options.append(true).create(true).open(self.path(name));
            file.unwrap().write_all(text.as_bytes()).unwrap();
        }

        /// Appends a plugin's line to the log for each of these times.
        fn log(&self, times: std::ops::Range<u32>) {
            for time in times {
                let time = format!("2026-11-21T18:24:39.{time:06}Z");
                self.append(
                    "log",
                    &format!("{{\"time\":\"{time}\",\"plugin\":\"bridge\"}}\n"),
                );
            }
        }

        fn rename(&self, from: &str, to: &str) {
            fs::rename(self.path(from), self.path(to)).unwrap();
        }

        fn copy(&self, from: &str, to: &str) {
            fs::copy(self.path(from), self.path(to)).unwrap();
        }

        fn truncate(&self) {
            fs::write(self.path("log"), "").unwrap();
        }

        /// Reads the log. Returns the number of lines that all calls have read.
        fn read(&mut self) -> usize {
            let path = self.path("log");
            self.follower.read(&path, &mut |_| self.lines += 1).unwrap();
            self.lines
        }
    }

    #[test]
    fn each_line_counts_once_over_a_rotation_and_a_truncation() {
        let mut scene = Scene::new();
        assert_eq!(scene.read(), 0, "there is no file");
        scene.append("log", "a\nb\nc");
        assert_eq!(scene.read(), 2);
        scene.append("log", "c\n");
        assert_eq!((scene.read(), scene.read()), (3, 3));
        scene.append("log", "d\n");
        scene.rename("log", "log.1");
        assert_eq!(scene.read(), 4, "there is no new file");
        scene.append("log.1", "e\n");
        scene.append("log", "f\n");
        assert_eq!(scene.read(), 6);
        scene.append("log.1", "of a plugin that had opened the file\n");
        assert_eq!((scene.read(), scene.read()), (7, 7));
        scene.truncate();
        assert_eq!(scene.read(), 7, "the file is empty");
        scene.append("log", "g\n");
        assert_eq!(scene.read(), 8);
    }

    #[test]
    fn a_truncated_file_that_has_grown_beyond_the_position_is_read_from_its_start() {
        let mut scene = Scene::new();
        scene.log(0..2);
        assert_eq!(scene.read(), 2);
        scene.truncate();
        scene.log(2..7);
        assert_eq!((scene.read(), scene.read()), (7, 7));
    }

    #[test]
    fn lines_before_a_truncation_are_read_from_the_copy() {
        let mut scene = Scene::new();
        scene.log(0..3);
        assert_eq!(scene.read(), 3);
        scene.log(3..5);
        scene.copy("log", "log.of-an-operator");
        scene.log(5..6);
        scene.copy("log", "log-20261123");
        scene.truncate();
        scene.log(6..7);
        assert_eq!((scene.read(), scene.read()), (7, 7));
        // The log is rotated twice before the next reading. The second rotation renames the copy
        // that the first one made.
        scene.log(7..9);
        scene.copy("log", "log.1");
        scene.truncate();
        scene.log(9..12);
        scene.rename("log.1", "log.2");
        scene.copy("log", "log.1");
        scene.truncate();
        assert_eq!((scene.read(), scene.read()), (12, 12));
        scene.log(12..13);
        scene.copy("log", "log.0");
        scene.truncate();
        scene.log(13..14);
        assert_eq!((scene.read(), scene.read()), (14, 14));
    }

    #[test]
    fn files_of_several_rotations_since_the_last_reading_are_read() {
        let mut scene = Scene::new();
        scene.log(0..1);
        scene.rename("log", "log.1");
        scene.log(1..2);
        assert_eq!(scene.read(), 1, "lines of earlier rotations are old");
        scene.log(2..3);
        for name in ["log-a", "log-b", "log-c"] {
            scene.rename("log", name);
            scene.log(3 + number_of(name)..5 + number_of(name));
        }
        scene.copy("log-a", "log-a.of-an-operator");
        scene.copy("log-b", "log-b.of-an-operator");
        scene.copy("log", "log.of-an-operator");
        scene.append("log-garbage", "\u{1f}\u{8b}no text\n");
        assert_eq!((scene.read(), scene.read()), (8, 8));
    }

    /// Returns 0 for a name that ends with `a`, 2 for `b`, and 4 for `c`.
    fn number_of(name: &str) -> u32 {
        2 * u32::from(name.bytes().last().unwrap() - b'a')
    }
}
