//! Tasks, which may each be in a network namespace of its own, and what they keep open.

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

/// Returns paths of the network namespaces that open files and mounts of processes keep. The mounts may be
/// those of any mount namespace. Leaves out what this process may not see.
pub fn kept() -> Vec<PathBuf> {
    let (mut kept, mut seen) = (Vec::new(), BTreeSet::new());
    for process in numbers(Path::new("/proc")).unwrap_or_default() {
        let process = PathBuf::from(format!("/proc/{process}"));
        let files = fs::read_dir(process.join("fd")).into_iter().flatten();
        let files = files.flatten().map(|it| it.path());
        // A file that was opened by a mount which is no more has no name.
        let is_named = |it: PathBuf| it == Path::new("/") || it.to_string_lossy().starts_with(KIND);
        let is_kept = |it: &PathBuf| fs::read_link(it).is_ok_and(is_named);
        kept.extend(files.filter(is_kept));
        if seen.insert(fs::read_link(process.join("ns/mnt")).ok()) {
            let mounts = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
            // The fourth word of a line is what is mounted, the fifth is where.
            let mounts = mounts.lines().filter_map(|it| {
                let mut words = it.split(' ').skip(3);
                words.next().filter(|it| it.starts_with(KIND))?;
                words.next()?.strip_prefix('/')
            });
            kept.extend(mounts.map(|it| process.join("root").join(it)));
        }
    }
    kept
}

/// The kernel calls the file of a network namespace `net:[NUMBER]` (namespaces(7)).
const KIND: &str = "net:[";

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
