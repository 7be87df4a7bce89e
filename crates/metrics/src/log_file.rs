//! Reads the lines of the plugins' log.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use nix::fcntl::OFlag;

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// The line, with its line feed.
    Whole(&'a [u8]),
    /// The line is longer than a plugin writes.
    TooLong,
}

/// Calls `handle` for each line. A file that does not exist has no lines, and the last line does not
/// count without a line feed.
///
/// # Errors
/// The file cannot be read, or is no regular file.
pub(crate) fn lines(path: &Path, handle: impl FnMut(Line<'_>)) -> anyhow::Result<()> {
    let read = || match open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => lines_of(file?, handle),
    };
    read().with_context(|| format!("read log file {}", path.display()))
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok(file)
}

fn lines_of(file: File, mut handle: impl FnMut(Line<'_>)) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(BUFFER, file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut start = reader.by_ref().take(LONGEST);
        let length = start.read_until(b'\n', &mut line)?;
        if line.ends_with(b"\n") {
            handle(Line::Whole(&line));
        } else if length as u64 == LONGEST {
            reader.skip_until(b'\n')?;
            handle(Line::TooLong);
        } else {
            return Ok(());
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
            lines(&path, handle).map(|()| read)
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
