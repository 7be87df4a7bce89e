//! Installs executables. All of them are copied, and each copy is run once as a test, before the
//! first copy replaces an installed executable.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use cni::files::{Links, read_regular};
use cni::{Undo, note, process};
use serde_json::Value;

use super::files::{self, AtomicFile, Lock};

/// Returns the names of the executables in a release of this suite.
fn released() -> impl Iterator<Item = &'static str> {
    schema::plugins().chain([TOOL])
}

/// Which executables are installed, from which directory and into which one.
#[derive(Debug)]
pub struct Executables {
    /// The source directory.
    pub from: PathBuf,
    /// The destination directory.
    pub directory: PathBuf,
    pub selection: Selection,
}

/// Which executables are installed, from environment variables. Other installers of CNI plugins use
/// the same variables.
#[derive(Debug, PartialEq, Eq)]
pub struct Selection {
    /// `SKIP_CNI_BINARIES`: names of executables that are not installed, separated by commas.
    skipped: Vec<String>,
    /// Whether existing executables stay: `UPDATE_CNI_BINARIES` is false.
    keeps_existing: bool,
}

impl Selection {
    /// Reads the variables with `lookup`. An empty variable counts as absent.
    pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> anyhow::Result<Self> {
        let text = |name: &str| {
            let value = lookup(name).unwrap_or_default();
            value.to_string_lossy().trim().to_owned()
        };
        let (skip, update) = (text(SKIP), text(UPDATE));
        let names = skip.split(',').map(str::trim);
        let skipped = names.filter(|it| !it.is_empty()).map(str::to_owned);
        let skipped: Vec<_> = skipped.collect();
        for name in &skipped {
            if !released().any(|it| it == name) {
                note!("{SKIP}: there is no {name} to be skipped");
            }
        }
        let keeps_existing = match update.to_ascii_lowercase().as_str() {
            "" | "true" | "1" => false,
            "false" | "0" => true,
            _ => bail!("{UPDATE}: {update:?} is neither true nor false"),
        };
        Ok(Self {
            skipped,
            keeps_existing,
        })
    }

    /// Returns what the installation does with this executable, as a text for the operator.
    fn of(&self, name: &str, directory: &Path) -> &'static str {
        if self.skipped.iter().any(|it| it == name) {
            return "skipped, by SKIP_CNI_BINARIES";
        }
        if self.keeps_existing && directory.join(name).exists() {
            return "left as it was, by UPDATE_CNI_BINARIES";
        }
        INSTALLED
    }
}

impl Executables {
    /// Returns whether the directory has the plugin after the installation.
    pub fn will_have(&self, name: &str) -> bool {
        let choice = self.selection.of(name, &self.directory);
        let is_installed = choice == INSTALLED && released().any(|it| it == name);
        is_installed || self.directory.join(name).exists()
    }

    /// Creates the directory, waits up to an hour until no other installation into it runs, and
    /// takes the directory's lock. Only the holder of the lock may have temporary files there.
    pub fn lock(&self) -> anyhow::Result<Lock> {
        let room = self.room();
        files::make_directory(&self.directory, room)?;
        Lock::take(&self.directory, room)
    }

    /// Returns the free space in bytes that the installation needs: that of all new executables,
    /// because the former ones are deleted last.
    fn room(&self) -> u64 {
        let is_chosen = |it: &&str| self.selection.of(it, &self.directory) == INSTALLED;
        let chosen = released().filter(is_chosen);
        let lengths = chosen.map(|name| {
            let metadata = fs::metadata(self.from.join(name));
            metadata.map_or(0, |it| it.len().next_multiple_of(BLOCK))
        });
        lengths.sum()
    }

    /// Installs all selected executables or, on an error, none. The caller must hold the lock. A
    /// plugin that is running at this moment keeps its former executable.
    pub fn install(&self) -> anyhow::Result<()> {
        files::sweep(&self.directory)?;
        let mut choices = BTreeMap::<_, Vec<_>>::new();
        for name in released() {
            let choice = self.selection.of(name, &self.directory);
            choices.entry(choice).or_default().push(name);
        }
        let chosen = choices.get(INSTALLED).into_iter().flatten();
        let prepared = chosen.clone().map(|name| self.prepare(name));
        let prepared: Vec<_> = prepared.collect::<anyhow::Result<_>>()?;
        let mut undo = Undo::default();
        for file in prepared {
            file.take_place(&mut undo)?;
        }
        for name in chosen {
            self.verify(name, &self.directory.join(name))?;
        }
        files::sync(&self.directory)?;
        undo.keep();
        for (done, names) in choices {
            let (directory, names) = (self.directory.display(), names.join(", "));
            note!("{directory}: {done}: {names}");
        }
        Ok(())
    }

    fn prepare(&self, name: &str) -> anyhow::Result<AtomicFile> {
        let place = self.directory.join(name);
        ensure!(!place.is_dir(), "{} is a directory", place.display());
        let prepared = AtomicFile::write(place, &self.read(name)?, 0o755, self.room())?;
        self.verify(name, prepared.path())?;
        Ok(prepared)
    }

    fn read(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let source = self.from.join(name);
        let advice = "--from names the directory of the executables";
        read(&source).with_context(|| format!("read {}, where {advice}", source.display()))
    }

    /// Checks that the copied executable equals its source, and that it starts.
    fn verify(&self, name: &str, path: &Path) -> anyhow::Result<()> {
        let found = read(path).with_context(|| format!("read {}", path.display()))?;
        ensure!(
            found == self.read(name)?,
            "{} differs from {}: does another program write there?",
            path.display(),
            self.from.join(name).display()
        );
        answers(name, path).with_context(|| format!("run {} as {name}", path.display()))
    }
}

fn read(executable: &Path) -> io::Result<Vec<u8>> {
    read_regular(executable, Links::Follow, LARGEST)
}

fn answers(name: &str, path: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(path);
    let is_tool = name == TOOL;
    command.args(is_tool.then_some("--version"));
    command.env("CNI_COMMAND", "VERSION");
    let output = process::output_of(&mut command, b"", LONGEST_VERSION).map_err(|error| {
        let cni::Error::Io { source, .. } = &error else {
            return error.into();
        };
        let question = match source.raw_os_error() {
            Some(nix::libc::EACCES | nix::libc::EPERM) => "is its file system mounted noexec?",
            Some(nix::libc::ENOEXEC) => "is it for another kind of processor?",
            _ => return error.into(),
        };
        anyhow::Error::from(error).context(question)
    })?;
    let is_right = if is_tool {
        output.stdout.starts_with(TOOL.as_bytes())
    } else {
        let answer = serde_json::from_slice::<Value>(&output.stdout);
        answer.is_ok_and(|it| it.get("supportedVersions").is_some())
    };
    let status = output.status;
    ensure!(
        status.success() && is_right,
        "it does not report its version: {status}"
    );
    Ok(())
}

/// Size limit of an executable in bytes. The largest one has 16 MiB, without debug information.
const LARGEST: u64 = 1 << 30;

/// Size of a block in bytes, the unit in which usual file systems allocate.
const BLOCK: u64 = 4096;

/// Time limit of an executable that reports its version.
const LONGEST_VERSION: Duration = Duration::from_secs(10);

const INSTALLED: &str = "installed";
const TOOL: &str = "cnitool";
const SKIP: &str = "SKIP_CNI_BINARIES";
const UPDATE: &str = "UPDATE_CNI_BINARIES";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(skip: &str, update: &str) -> anyhow::Result<Selection> {
        Selection::read(|name| match name {
            SKIP => Some(skip.into()),
            UPDATE => Some(update.into()),
            _ => None,
        })
    }

    #[test]
    fn names_are_separated_by_commas_and_may_have_room_around_them() {
        let selection = read(" bridge,,host-local ", "").unwrap();
        assert_eq!(selection.skipped, ["bridge", "host-local"]);
        assert!(!selection.keeps_existing);
    }

    #[test]
    fn whether_existing_ones_stay_is_a_boolean() {
        for (text, existing) in [
            ("", false),
            ("True", false),
            ("1", false),
            ("false", true),
            ("0", true),
        ] {
            assert_eq!(read("", text).unwrap().keeps_existing, existing, "{text}");
        }
        let error = read("", "never").unwrap_err().to_string();
        assert!(error.contains(UPDATE) && error.contains("never"), "{error}");
    }
}
