//! Tasks, which may each be in a network namespace of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::errno::Errno;

/// Returns the IDs of all threads that `/proc` shows. A thread may have entered another namespace
/// than its process.
///
/// # Errors
/// `/proc` cannot be read.
pub fn tasks() -> io::Result<BTreeSet<u32>> {
    let mut tasks = BTreeSet::new();
    for process in numbers(Path::new("/proc"))? {
        let threads = numbers(&PathBuf::from(format!("/proc/{process}/task")));
        match threads {
            Err(error) if is_ended(&error) => {}
            threads => tasks.extend(threads?),
        }
    }
    Ok(tasks)
}

/// Returns the names in the directory that are numbers.
fn numbers(directory: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|it| it.parse::<u32>().ok()));
    }
    Ok(numbers)
}

fn is_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}
