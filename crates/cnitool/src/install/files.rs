//! Files that are whole or absent, after a crash of the machine as well.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cni::{Undo, note};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tempfile::{Builder, TempPath};

/// A file beside the place that it is for; removed unless it gets there.
#[derive(Debug)]
pub struct Aside {
    path: TempPath,
    place: PathBuf,
}

impl Aside {
    /// Writes it, and syncs it: a name never leads to less than all of it.
    pub fn write(place: PathBuf, content: &[u8], mode: u32) -> anyhow::Result<Self> {
        let (directory, name) = parts(&place)?;
        let write = || {
            let mut builder = Builder::new();
            let prefix = format!("{PREFIX}{name}-");
            let mut file = builder.prefix(&prefix).tempfile_in(directory)?;
            file.write_all(content)?;
            // Whatever the umask was.
            file.as_file()
                .set_permissions(Permissions::from_mode(mode))?;
            file.as_file().sync_all()?;
            // Closed, since what is open for writing cannot be run.
            Ok::<_, std::io::Error>(file.into_temp_path())
        };
        let path = write().with_context(|| format!("write {}", place.display()));
        let path = path.map_err(|error| with_advice(error, directory))?;
        Ok(Self { path, place })
    }

    /// Where it is now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, in one step: who opens the name gets the former file or this one. The former
    /// one is there, aside, as long as `undo` may need it.
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

/// A file whose content is known.
#[derive(Debug)]
pub struct Wanted {
    place: PathBuf,
    content: Vec<u8>,
}

/// Whether a file that differs is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// It is.
    Yes,
    /// It is not, and that is an error.
    No,
}

impl Wanted {
    /// The file at `place`, unless it is there as it should be.
    ///
    /// # Errors
    /// It is there and differs, or cannot be read.
    pub fn plan(place: PathBuf, content: Vec<u8>, force: Force) -> anyhow::Result<Option<Self>> {
        match fs::read(&place) {
            Ok(found) if found == content => {
                note(format_args!("{}: is there already", place.display()));
                Ok(None)
            }
            Ok(_) if force == Force::No => bail!(
                "{} is there and differs: --force replaces it",
                place.display()
            ),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("read {}", place.display()))
            }
            _ => Ok(Some(Self { place, content })),
        }
    }

    /// Puts it there.
    pub fn put(self) -> anyhow::Result<()> {
        let Self { place, content } = self;
        make_directory(parts(&place)?.0)?;
        let mut undo = Undo::default();
        Aside::write(place.clone(), &content, 0o644)?.take_place(&mut undo)?;
        sync(parts(&place)?.0)?;
        undo.keep();
        note(format_args!("{}: written", place.display()));
        Ok(())
    }
}

/// Makes a directory, and those above it, where they are missing.
pub fn make_directory(directory: &Path) -> anyhow::Result<()> {
    let made = fs::create_dir_all(directory);
    let made = made.with_context(|| format!("make the directory {}", directory.display()));
    made.map_err(|error| with_advice(error, directory))
}

/// Names that were given in `directory` outlive a crash of the machine.
pub fn sync(directory: &Path) -> anyhow::Result<()> {
    let synced = File::open(directory).and_then(|it| it.sync_all());
    synced.with_context(|| format!("sync {}", directory.display()))
}

/// Removes what was left aside in `directory` by who was killed. No other installation may be at work
/// there.
pub fn sweep(directory: &Path) -> anyhow::Result<()> {
    let sweep = || {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(PREFIX.as_bytes())
            {
                fs::remove_file(entry.path())?;
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

/// `error`, with what the operator can do about `directory`.
pub fn with_advice(error: anyhow::Error, directory: &Path) -> anyhow::Error {
    let cause = error.root_cause().downcast_ref::<std::io::Error>();
    let advice = match cause.map(std::io::Error::kind) {
        Some(ErrorKind::PermissionDenied) => "run this as root, who has to own",
        Some(ErrorKind::ReadOnlyFilesystem) => "name a directory that can be written to, not",
        Some(ErrorKind::StorageFull) => "make room for 10 MiB in",
        _ => return error,
    };
    anyhow::anyhow!("{error:#}: {advice} {}", directory.display())
}

/// No runtime takes a file of such a name for a configuration or a plugin.
const PREFIX: &str = ".cni-install-";
