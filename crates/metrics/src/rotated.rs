//! Finds the files to which rotations have moved or copied the log since the last reading.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::log_file::LogFile;

/// Returns the rotated files with unread lines, oldest first.
///
/// `known` is the file from which the log was last read, and `now` is the file that has the log's
/// name. This function returns neither of them, but:
///
/// - a copy of `known`, positioned where the reading of `known` ended;
/// - files whose first line is later than the last line that was read, and earlier than the first
///   line of `now`.
///
/// The names of these files begin with the name of the log, as logrotate names them. If several
/// files start at the same time, returns only one, because the others are copies that an operator
/// made. Skips compressed files, because their first line has no time.
pub(crate) fn missed(log: &Path, known: &LogFile, now: &LogFile) -> Vec<LogFile> {
    let is_other = |file: &LogFile| {
        let is_one = |it: &LogFile| it.is(file).unwrap_or(true);
        !is_one(known) && !is_one(now)
    };
    let (mut copies, mut later) = (Vec::new(), BTreeMap::new());
    for path in beside(log) {
        let Ok(Some(mut file)) = LogFile::open(&path) else {
            continue;
        };
        if !is_other(&file) {
            continue;
        }
        if file.continues(known).unwrap_or_default() {
            copies.push(file);
        } else if let Ok(Some(time)) = file.first_time() {
            later.insert(time, file);
        }
    }
    let (after, before) = (known.last_time(), now.first_time().unwrap_or_default());
    later.retain(|time, _| {
        let is_after = after.as_ref().is_some_and(|it| time > it);
        is_after && before.as_ref().is_none_or(|it| time < it)
    });
    let copy = copies.into_iter().max_by_key(LogFile::length);
    copy.into_iter().chain(later.into_values()).collect()
}

/// Returns the paths of other files in the log's directory whose names begin with the log's name.
fn beside(log: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name()) else {
        return Vec::new();
    };
    let is_beside = |it: &OsStr| it != name && it.as_bytes().starts_with(name.as_bytes());
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let entries = entries.filter(|it| is_beside(&it.file_name()));
    entries.map(|it| it.path()).collect()
}
