//! Reads the lines of the plugins' log.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Context as _;
use cni::files::{Links, if_present, open_regular};

/// A line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// The line, with its line feed.
    Whole(&'a [u8]),
    /// The line is longer than a plugin writes.
    TooLong,
}

/// A log file that is read up to some position.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: File,
    /// Number of bytes that are read: all of them belong to complete lines.
    position: u64,
}

impl LogFile {
    /// Opens the file, to read it from its start. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be opened, or is no regular file.
    pub fn open(path: &Path) -> anyhow::Result<Option<Self>> {
        let file = if_present(open_regular(path, Links::Refuse));
        let file = file.with_context(|| format!("open log file {}", path.display()))?;
        Ok(file.map(|file| Self { file, position: 0 }))
    }

    /// Returns whether both are the same file, which may have different paths.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn is(&self, other: &Self) -> io::Result<bool> {
        let identity = |file: &File| file.metadata().map(|it| (it.dev(), it.ino()));
        Ok(identity(&self.file)? == identity(&other.file)?)
    }

    /// Calls `handle` for each line since the last call. The last line does not count without a
    /// line feed. If the file has become shorter, begins at its start.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self, mut handle: impl FnMut(Line<'_>)) -> io::Result<()> {
        if self.file.metadata()?.len() < self.position {
            self.position = 0;
        }
        self.file.seek(SeekFrom::Start(self.position))?;
        let mut reader = BufReader::with_capacity(BUFFER, &self.file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut start = reader.by_ref().take(LONGEST);
            let mut length = start.read_until(b'\n', &mut line)?;
            if line.ends_with(b"\n") {
                handle(Line::Whole(&line));
            } else if length as u64 == LONGEST {
                length += reader.skip_until(b'\n')?;
                handle(Line::TooLong);
            } else {
                return Ok(());
            }
            self.position += length as u64;
        }
    }
}

const BUFFER: usize = 64 << 10;

/// Longest line in bytes: more than a configuration of 64 KiB with everything else.
const LONGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_are_whole_and_memory_is_limited() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let read = || {
            let mut read = Vec::new();
            let handle = |line: Line<'_>| {
                read.push(match line {
                    Line::Whole(line) => String::from_utf8(line.to_owned()).unwrap(),
                    Line::TooLong => "too long".to_owned(),
                });
            };
            if let Some(mut file) = LogFile::open(&path)? {
                file.read(handle)?;
            }
            anyhow::Ok(read)
        };
        assert!(read().unwrap().is_empty());
        let long = "x".repeat(3 << 20);
        fs::write(&path, format!("a\n{long}\nb\nincomplete")).unwrap();
        assert_eq!(read().unwrap(), ["a\n", "too long", "b\n"]);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(read().is_err());
    }
}
