//! Writes files so that a new file is complete or absent, even after a crash of the machine. Locks a
//! directory that executables are installed into.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cni::files::{Hold, lock, open_writable};
use cni::{Undo, note};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tempfile::{Builder, TempPath};

/// A temporary file in the directory of its destination. It is deleted on drop unless
/// [`take_place`](Self::take_place) was called.
#[derive(Debug)]
pub struct AtomicFile {
    path: TempPath,
    place: PathBuf,
}

impl AtomicFile {
    /// Writes and syncs the temporary file, so that the destination never names an incomplete file.
    /// `room` is for [`with_advice`].
    pub fn write(place: PathBuf, content: &[u8], mode: u32, room: u64) -> anyhow::Result<Self> {
        let (directory, name) = parts(&place)?;
        let write = || {
            let prefix = format!("{PREFIX}{name}-");
            let mut file = Builder::new().prefix(&prefix).tempfile_in(directory)?;
            file.write_all(content)?;
            // `Builder` creates the file with mode 0600. The umask would limit any other mode at
            // creation, so the mode is set here.
            let permissions = Permissions::from_mode(mode);
            file.as_file().set_permissions(permissions)?;
            file.as_file().sync_all()?;
            // Closes the file, because the kernel refuses to run a file that is open for writing.
            Ok::<_, std::io::Error>(file.into_temp_path())
        };
        let path = write().with_context(|| format!("write {}", place.display()));
        let path = path.map_err(|error| with_advice(error, directory, room))?;
        Ok(Self { path, place })
    }

    /// Returns the path of the temporary file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the file to its destination in one step, so other processes open either the former
    /// file or the new one. The former file gets the temporary name: a rollback by `undo` puts it
    /// back, and [`Undo::keep`] deletes it. If there is no former file, a rollback deletes the new
    /// one.
    pub fn take_place(self, undo: &mut Undo<'_>) -> anyhow::Result<()> {
        let Self { path, place } = self;
        let what = format!("put {} into its place", place.display());
        match exchange(&path, &place) {
            Ok(()) => undo.push("put the former file back", move || {
                Ok(exchange(&path, &place)?)
            }),
            Err(Errno::NOENT) => {
                path.persist_noclobber(&place).context(what)?;
                undo.push("remove the new file", move || Ok(fs::remove_file(&place)?));
            }
            Err(Errno::INVAL) => bail!("{what}: its file system cannot exchange two names"),
            Err(error) => return Err(error).context(what),
        }
        Ok(())
    }
}

/// A file to write, with its content.
#[derive(Debug)]
pub struct Wanted {
    pub place: PathBuf,
    pub content: Vec<u8>,
}

impl Wanted {
    /// Writes the file or replaces it, in one step. Creates missing directories above it.
    pub fn put(self) -> anyhow::Result<()> {
        let Self { place, content } = self;
        let (directory, _) = parts(&place)?;
        let room = content.len() as u64;
        make_directory(directory, room)?;
        let mut undo = Undo::default();
        AtomicFile::write(place.clone(), &content, 0o644, room)?.take_place(&mut undo)?;
        sync(directory)?;
        undo.keep();
        note!("{}: written", place.display());
        Ok(())
    }
}

/// A locked file in the directory of executables, removed on drop before the lock is released. If it
/// cannot be removed, it stays, empty and harmless.
///
/// The lock is on a file, because any user that can open the directory could lock the directory
/// itself. Other users cannot open this file.
#[derive(Debug)]
pub struct Lock {
    _path: TempPath,
    _file: File,
}

impl Lock {
    /// Waits until no other installation into `directory` runs, and takes the lock (flock(2)).
    /// `room` is for [`with_advice`].
    ///
    /// # Errors
    /// The file cannot be created or locked, or another process holds the lock for [`PATIENCE`].
    pub fn take(directory: &Path, room: u64) -> anyhow::Result<Self> {
        let path = directory.join(LOCK);
        let open = |path: &Path| open_writable(path, OpenOptions::new().read(true).create(true));
        let action = || format!("lock {}", directory.display());
        let taken = lock(&path, open, Hold::Exclusive, PATIENCE).with_context(action);
        let file = taken.map_err(|error| with_advice(error, directory, room))?;
        let file = file.context("another installation has had the lock for an hour: end it first");
        Ok(Self {
            _file: file.with_context(action)?,
            _path: TempPath::try_from_path(path)?,
        })
    }
}

/// Creates a directory and its parents, if missing. `room` is for [`with_advice`].
pub fn make_directory(directory: &Path, room: u64) -> anyhow::Result<()> {
    let made = fs::create_dir_all(directory);
    let made = made.with_context(|| format!("make the directory {}", directory.display()));
    made.map_err(|error| with_advice(error, directory, room))
}

/// Syncs `directory`, so new names in it survive a crash of the machine.
pub fn sync(directory: &Path) -> anyhow::Result<()> {
    let synced = File::open(directory).and_then(|it| it.sync_all());
    synced.with_context(|| format!("sync {}", directory.display()))
}

/// Removes temporary files that a killed installation left in `directory`. No other installation
/// may be running there.
pub fn sweep(directory: &Path) -> anyhow::Result<()> {
    let sweep = || {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
                fs::remove_file(path)?;
            }
        }
        Ok::<_, std::io::Error>(())
    };
    sweep().with_context(|| format!("remove what was left in {}", directory.display()))
}

fn exchange(one: &Path, other: &Path) -> rustix::io::Result<()> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

fn parts(place: &Path) -> anyhow::Result<(&Path, &str)> {
    let name = place.file_name().and_then(|it| it.to_str());
    let parts = place.parent().zip(name);
    parts.with_context(|| format!("{} names no file", place.display()))
}

/// Adds to `error` what the operator can do if `directory` cannot be written. `room` is the free
/// space in bytes that all new files need there.
fn with_advice(error: anyhow::Error, directory: &Path, room: u64) -> anyhow::Error {
    let cause = error.root_cause().downcast_ref::<std::io::Error>();
    let needed = format!("make room for {} MiB in", room.div_ceil(1 << 20));
    let advice = match cause.map(std::io::Error::kind) {
        Some(ErrorKind::PermissionDenied) => {
            "run this as root, with CAP_DAC_OVERRIDE unless root owns"
        }
        Some(ErrorKind::ReadOnlyFilesystem) => "name a directory that can be written to, not",
        Some(ErrorKind::StorageFull) => &needed,
        _ => return error,
    };
    anyhow::anyhow!("{error:#}: {advice} {}", directory.display())
}

/// Prefix of temporary files, which no runtime mistakes for a configuration or a plugin.
const PREFIX: &str = ".cni-install-";

/// Name of the locked file. It does not have the prefix of temporary files, so an installation that
/// deletes old temporary files keeps it.
const LOCK: &str = ".cni-install.lock";

/// Longest wait for another installation, which takes seconds.
const PATIENCE: Duration = Duration::from_hours(1);
