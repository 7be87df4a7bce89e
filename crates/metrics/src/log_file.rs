//! Reads the lines of the plugins' log.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::Context as _;
use cni::files::{Links, if_present, open_regular};

/// Takes a line of the log, with its line feed. Takes an empty text for a line that is longer than
/// [`LONGEST`], so no plugin wrote it.
pub(crate) type Handle<'a> = &'a mut dyn FnMut(&[u8]);

/// An open log file, with the position up to which it was read.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: File,
    /// Number of bytes that were read. All of them belong to complete lines.
    position: u64,
    last: Last,
    /// Time of the last line that was read from earlier files of this log.
    after: Option<String>,
}

/// The last line that was read from a file. Its time makes it unique. So it shows whether the file
/// was truncated since, and whether another file is a copy.
#[derive(Debug, Default)]
struct Last {
    /// Position of the line's first byte.
    position: u64,
    /// The line's first bytes, at most [`LONGEST_START`].
    start: Vec<u8>,
}

impl LogFile {
    /// Opens the file for reading from its start. Returns `None` if the file does not exist.
    ///
    /// # Errors
    /// The file cannot be opened, or is no regular file.
    pub fn open(path: &Path) -> anyhow::Result<Option<Self>> {
        let file = if_present(open_regular(path, Links::Refuse));
        let file = file.with_context(|| format!("open log file {}", path.display()))?;
        Ok(file.map(|file| Self {
            file,
            position: 0,
            last: Last::default(),
            after: None,
        }))
    }

    /// Returns whether `self` and `other` are the same file, even if they were opened at different
    /// paths.
    ///
    /// # Errors
    /// The kernel does not report the identity of a file.
    pub fn is(&self, other: &Self) -> io::Result<bool> {
        let identity = |file: &File| file.metadata().map(|it| (it.dev(), it.ino()));
        Ok(identity(&self.file)? == identity(&other.file)?)
    }

    /// Returns whether the file still contains the last line that was read from it; `true` if no
    /// line was read. A truncated file does not contain the line, even if it has grown again.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_whole(&self) -> io::Result<bool> {
        self.has(&self.last)
    }

    /// Returns whether no line of the file was read.
    pub fn is_unread(&self) -> bool {
        self.last.start.is_empty()
    }

    /// Returns whether this file is a copy of `original`. A copy has the last line that was read
    /// from `original` at the same position. The next [`Self::read`] of a copy begins after this
    /// line. Returns `false` if no line of `original` was read.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn continues(&mut self, original: &Self) -> io::Result<bool> {
        let is_copy = !original.is_unread() && self.has(&original.last)?;
        if is_copy {
            self.position = original.position;
        }
        Ok(is_copy)
    }

    fn has(&self, last: &Last) -> io::Result<bool> {
        let mut found = vec![0; last.start.len()];
        match self.file.read_exact_at(&mut found, last.position) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| found == last.start),
        }
    }

    /// Sets the position to the start of the file. `after` is the time of the last line that was
    /// read from earlier files of this log.
    pub fn begin(&mut self, after: Option<String>) {
        (self.position, self.last) = (0, Last::default());
        self.after = after;
    }

    /// Returns the size of the file in bytes; 0 if the kernel does not report it.
    pub fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |it| it.len())
    }

    /// Returns the time of the last line that was read from this file. If there is no such line, or
    /// if it has no time, returns the time of the last line that was read from earlier files of
    /// this log, if that is known.
    pub fn last_time(&self) -> Option<String> {
        time(&self.last.start).or_else(|| self.after.clone())
    }

    /// Returns the time of the first line of the file; `None` if the file is empty, or if its first
    /// line does not begin with a time.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn first_time(&self) -> io::Result<Option<String>> {
        let mut start = [0; LONGEST_START];
        let length = self.file.read_at(&mut start, 0)?;
        Ok(start.get(..length).and_then(time))
    }

    /// Calls `handle` for each line since the last call. Leaves a last line without a line feed to
    /// a later call, because it is incomplete.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self, handle: Handle<'_>) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.position))?;
        let mut reader = BufReader::with_capacity(BUFFER, &self.file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut start = reader.by_ref().take(LONGEST);
            let mut length = start.read_until(b'\n', &mut line)?;
            if line.ends_with(b"\n") {
                handle(&line);
            } else if length as u64 == LONGEST {
                length += reader.skip_until(b'\n')?;
                handle(b"");
            } else {
                return Ok(());
            }
            line.truncate(LONGEST_START);
            self.last.position = self.position;
            self.last.start.clone_from(&line);
            self.position += length as u64;
        }
    }
}

/// Returns the time at the start of a line; `None` if the line does not start with a time. Plugins
/// write the time first: `{"time":"2026-11-21T18:24:39.104512Z",`. Times in this form can be
/// compared as text.
fn time(start: &[u8]) -> Option<String> {
    let rest = start.strip_prefix(b"{\"time\":\"")?;
    let end = rest.iter().position(|it| *it == b'"')?;
    String::from_utf8(rest.get(..end)?.to_owned()).ok()
}

const BUFFER: usize = 64 << 10;

/// Maximum length of a line in bytes. A plugin writes shorter lines: at most 64 KiB of
/// configuration, and the other fields.
const LONGEST: u64 = 1 << 20;

/// Bytes of a line that identify it: its time, and most other fields.
const LONGEST_START: usize = 256;

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
            let mut handle = |line: &[u8]| read.push(String::from_utf8(line.to_owned()).unwrap());
            if let Some(mut file) = LogFile::open(&path)? {
                file.read(&mut handle)?;
            }
            anyhow::Ok(read)
        };
        assert!(read().unwrap().is_empty());
        let long = "x".repeat(3 << 20);
        fs::write(&path, format!("a\n{long}\nb\nincomplete")).unwrap();
        assert_eq!(read().unwrap(), ["a\n", "", "b\n"]);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(read().is_err());
    }
}
