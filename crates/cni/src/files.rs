//! Reads, writes and locks files that another program may have replaced. If the file is now a pipe,
//! this fails instead of blocking. If the file exceeds a limit, reading fails, too.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::fcntl::OFlag;

/// What to do with a symbolic link in place of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Open the file that the link points to.
    Follow,
    /// Return an error. The programs that write the file never create a symbolic link there.
    Refuse,
}

/// Reads a file that an operator or another program writes, such as a configuration or a cached
/// result. Follows symbolic links.
///
/// # Errors
/// The file cannot be read, is not a regular file, or is larger than 16 MiB.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_regular(path, Links::Follow, LARGEST)
}

/// Reads a regular file of at most `largest` bytes.
///
/// # Errors
/// The file cannot be read, is not a regular file, or is larger.
pub fn read_regular(path: &Path, links: Links, largest: u64) -> io::Result<Vec<u8>> {
    let (file, length) = open(path, links)?;
    read_rest(&file, length, largest)
}

/// Reads a file that [`open_regular`] has opened.
///
/// # Errors
/// The file cannot be read, or is larger than 16 MiB.
pub fn read_opened(file: &File) -> io::Result<Vec<u8>> {
    read_rest(file, file.metadata()?.len(), LARGEST)
}

fn read_rest(file: &File, length: u64, largest: u64) -> io::Result<Vec<u8>> {
    // The buffer has one byte more than the file. So the first read(2) fetches the whole file, and
    // the second one, which finds the end of the file, needs no larger buffer.
    let room = usize::try_from(length.min(largest)).unwrap_or_default();
    let mut bytes = Vec::with_capacity(room + 1);
    file.take(largest + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > largest {
        let reason = format!("it is larger than {} MiB", largest >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// Opens a file for writing, with `options` such as [`OpenOptions::create`]. A new file is readable
/// only for its user. Refuses a symbolic link.
///
/// # Errors
/// The file cannot be opened, or is a pipe that no process reads.
pub fn open_writable(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    options.write(true).mode(0o600).custom_flags(flags.bits());
    options.open(path)
}

/// Removes a file, if it exists.
///
/// # Errors
/// The file cannot be removed.
pub fn remove(path: &Path) -> anyhow::Result<()> {
    match if_present(fs::remove_file(path)) {
        // On a read-only file system, unlink(2) fails with EROFS even if the file is missing, so
        // only an error for an existing file counts.
        Err(error) if !matches!(if_present(path.symlink_metadata()), Ok(None)) => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Creates a directory with these permissions, and its parents.
///
/// # Errors
/// A directory cannot be created.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Opens a regular file for reading.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    Ok(open(path, links)?.0)
}

/// Opens a regular file for reading and returns it with its length in bytes.
fn open(path: &Path, links: Links) -> io::Result<(File, u64)> {
    let flags = match links {
        Links::Follow => OFlag::O_NONBLOCK,
        Links::Refuse => OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW,
    };
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags.bits()).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other(IRREGULAR));
    }
    Ok((file, found.len()))
}

/// Returns whether nothing is at `path`, which could not be opened because of `ENOENT`. A symbolic
/// link without a target is something, also if it is one of the path's parents.
pub fn is_absent(path: &Path) -> bool {
    let mut found = path.ancestors().filter(|it| it.symlink_metadata().is_ok());
    found.next().is_some_and(|it| it != path && it.is_dir())
}

/// Converts the outcome of a file system call on a path. Returns `None` if the path does not exist,
/// if one of its parents is a file, or if a name in it is too long for any file.
///
/// # Errors
/// All other errors of the call.
pub fn if_present<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if ABSENT.contains(&error.kind()) => Ok(None),
        outcome => outcome.map(Some),
    }
}

const ABSENT: [ErrorKind; 3] = [
    ErrorKind::NotFound,
    ErrorKind::NotADirectory,
    ErrorKind::InvalidFilename,
];

const IRREGULAR: &str = "it is not a regular file";

/// Size limit of [`read`] in bytes. A result with a few hundred interfaces has less than one MiB.
const LARGEST: u64 = 16 << 20;

/// The longest wait for a lock, a hundred years. An [`Instant`] that is much later cannot exist.
const LONGEST: Duration = Duration::from_hours(100 * 365 * 24);

/// Kind of a lock on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Other processes may hold shared locks at the same time.
    Shared,
    /// No other process may hold a lock at the same time.
    Exclusive,
}

/// Opens the file at `path` with `open` and locks it with flock(2). Returns `None` if the function
/// does not get the lock within `timeout`. If another process replaces or removes the file before
/// the function has the lock, the function calls `open` again and locks the new file.
///
/// # Errors
/// `open` fails, or the file cannot be locked.
pub fn lock(
    path: &Path,
    open: impl Fn(&Path) -> io::Result<File>,
    hold: Hold,
    timeout: Duration,
) -> io::Result<Option<File>> {
    let deadline = Instant::now() + timeout.min(LONGEST);
    loop {
        let Some(locked) = lock_until(open(path)?, hold, deadline)? else {
            return Ok(None);
        };
        if identity(locked.metadata()) == identity(fs::metadata(path)) {
            return Ok(Some(locked));
        }
    }
}

/// Returns the ID of the boot (random(4)), which this process reads only once.
///
/// # Errors
/// `/proc` does not show it.
pub fn boot_id() -> anyhow::Result<String> {
    static TEXT: LazyLock<io::Result<String>> = LazyLock::new(|| fs::read_to_string(BOOT_ID));
    match &*TEXT {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(error) => bail!("read {BOOT_ID}: {error}"),
    }
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the device and inode of a file. Two paths lead to the same file if these are equal.
/// Returns `None` if `metadata` is an error.
pub fn identity(metadata: io::Result<Metadata>) -> Option<(u64, u64)> {
    metadata.map(|it| (it.dev(), it.ino())).ok()
}

/// Locks `file` and returns it. If another process holds a lock, a new thread waits for the lock,
/// because flock(2) has no timeout. Returns `None` if the thread has no lock at `deadline`.
///
/// After `deadline`, the thread keeps waiting until the process ends. If it gets the lock, it
/// releases the lock at once.
fn lock_until(file: File, hold: Hold, deadline: Instant) -> io::Result<Option<File>> {
    let (tried, wait): (_, fn(&File) -> io::Result<()>) = match hold {
        Hold::Shared => (file.try_lock_shared(), File::lock_shared),
        Hold::Exclusive => (file.try_lock(), File::lock),
    };
    match tried {
        Ok(()) => return Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(None);
    }
    let (turn, ours) = mpsc::channel();
    thread::spawn(move || drop(turn.send(wait(&file).map(|()| file))));
    match ours.recv_timeout(left) {
        Ok(lock) => lock.map(Some),
        Err(_) => Ok(None),
    }
}
