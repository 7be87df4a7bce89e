//! Directories with one file for each attachment. The file's name is the attachment's tag
//! ([`cni::Attachment::owner`]), with `:` in place of `/`. In this module, `owner` is such a tag.
//!
//! In most of these directories, the file is the attachment's record for later verbs; it may be
//! empty. In others, the file is no record: it only shows that the attachment is one of a list,
//! such as the users of a sysctl.
//!
//! DEL and GC retire (rename) a record before they look for the attachment's rules. RELOAD, a verb
//! of this suite, restores rules. RELOAD needs no lock against DEL and GC: it restores rules only
//! for an attachment with a record, and looks for the record again afterwards. If DEL or GC has
//! retired the record meanwhile, RELOAD removes the rules itself.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cni::files::{self, Links, if_present, make_directory, open_writable, read_regular};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// A directory with files of attachments. The directory may be missing while no attachment has a
/// file.
#[derive(Debug)]
pub struct OwnerFiles(pub PathBuf);

/// Which records [`OwnerFiles::write`] may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writing {
    /// New and existing records.
    All,
    /// Existing records only. RELOAD must not recreate a record that a concurrent DEL has retired
    /// (renamed).
    Existing,
}

/// The retired (renamed) record of an attachment that DEL or GC removes.
#[derive(Debug)]
pub struct Retired {
    /// The attachment's tag.
    pub owner: String,
    text: anyhow::Result<Option<String>>,
    files: [PathBuf; 2],
}

impl OwnerFiles {
    /// Returns whether the attachment with the tag `owner` has a file in the directory. A record
    /// that DEL or GC has renamed does not count. A file counts as existing if the kernel does not
    /// tell, because what has no record may be removed.
    pub fn has(&self, owner: &str) -> bool {
        self.file("", owner).try_exists().unwrap_or(true)
    }

    /// Returns the text of the record of the attachment `owner`.
    ///
    /// # Errors
    /// The record is missing or unreadable, or a DEL or GC has renamed it.
    pub fn find(&self, owner: &str) -> anyhow::Result<String> {
        let path = self.file("", owner);
        read(&path)?.with_context(|| {
            format!(
                "there is no record {}, as after a DEL or an ADD by another plugin; only ADD \
                 creates one",
                path.display()
            )
        })
    }

    /// Returns the text of the record of the attachment `owner`, even if a DEL or GC has renamed
    /// the record. Returns `None` if the record is missing or unreadable.
    pub fn find_also_retired(&self, owner: &str) -> Option<String> {
        let retired = || self.find_retired(owner);
        self.find(owner).ok().or_else(retired)
    }

    /// Returns the text of the retired record of the attachment `owner`: a failed or unfinished DEL
    /// or GC has renamed it, but not removed it. Returns `None` if there is no such record, or if
    /// it is unreadable.
    pub fn find_retired(&self, owner: &str) -> Option<String> {
        read(&self.file(RETIRED, owner)).ok()?
    }

    /// Adds an empty file for the attachment `owner` and returns `true`. If the directory does not
    /// exist, adds nothing and returns `false`.
    ///
    /// `portmap` lists the users of a sysctl with this function: the directory of such a list
    /// exists only if `portmap` itself set the sysctl.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn join_existing(&self, owner: &str) -> anyhow::Result<bool> {
        let path = self.file("", owner);
        match open_writable(&path, File::options().create(true)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("create {}", path.display())),
        }
    }

    /// Adds a file with `text` for the attachment `owner`. Returns `false`, and changes nothing, if
    /// the attachment already has a file. The file is complete or absent, even if this process is
    /// killed during the call.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(&self, owner: &str, text: &str) -> anyhow::Result<bool> {
        let [new, path] = [NEW, ""].map(|prefix| self.file(prefix, owner));
        let create = || {
            // An empty file is complete as soon as it exists.
            if text.is_empty() {
                return self.open(&path, File::options().create_new(true)).map(drop);
            }
            self.write_whole(&new, text)?;
            let renamed = renameat_with(CWD, &new, CWD, &path, RenameFlags::NOREPLACE);
            if renamed.is_err() {
                fs::remove_file(&new).ok();
            }
            Ok(renamed?)
        };
        match create() {
            Err(_) if path.try_exists().is_ok_and(|it| it) => Ok(false),
            created => created.map(|()| true).with_context(|| unwritten(&path)),
        }
    }

    /// Writes `text` as the record of the attachment `owner`. Even if this process is killed during
    /// the call, the record has either its former text or the new one.
    ///
    /// # Errors
    /// - The file cannot be written.
    /// - `writing` is [`Writing::Existing`], and there is no record.
    pub fn write(&self, owner: &str, text: &str, writing: Writing) -> anyhow::Result<()> {
        let [new, path] = [NEW, ""].map(|prefix| self.file(prefix, owner));
        let write = || {
            self.write_whole(&new, text)?;
            match writing {
                Writing::All => fs::rename(&new, &path),
                Writing::Existing => {
                    let exchanged = renameat_with(CWD, &new, CWD, &path, RenameFlags::EXCHANGE);
                    fs::remove_file(&new)?;
                    Ok(exchanged?)
                }
            }
        };
        write().with_context(|| unwritten(&path))
    }

    /// Retires (renames) the record of the attachment `owner`, so that RELOAD no longer finds it.
    /// DEL and GC call this function before they remove the attachment's rules, and
    /// [`Retired::remove`] afterwards.
    pub fn retire(&self, owner: &str) -> Retired {
        let [path, retired, new] = ["", RETIRED, NEW].map(|prefix| self.file(prefix, owner));
        Retired {
            owner: owner.to_owned(),
            text: take(&path, &retired),
            files: [new, retired],
        }
    }

    /// Retires the records of all attachments whose tag `is_stale` accepts, as [`Self::retire`] does.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn retire_stale(&self, is_stale: impl Fn(&str) -> bool) -> anyhow::Result<Vec<Retired>> {
        let stale = self.owners()?.into_iter().filter(|it| is_stale(it));
        Ok(stale.map(|it| self.retire(&it)).collect())
    }

    /// Removes the file of the attachment `owner`, if there is one.
    ///
    /// # Errors
    /// The file exists and cannot be removed.
    pub fn remove(&self, owner: &str) -> anyhow::Result<()> {
        files::remove(&self.file("", owner))
    }

    /// Returns the tags of all attachments that have a file, including incomplete records and
    /// records that a DEL or GC has renamed.
    ///
    /// # Errors
    /// The directory exists and cannot be read.
    pub fn owners(&self) -> anyhow::Result<BTreeSet<String>> {
        let list = || {
            let mut owners = BTreeSet::new();
            for entry in fs::read_dir(&self.0)? {
                owners.extend(entry?.file_name().to_str().and_then(owner_of));
            }
            Ok(owners)
        };
        let owners = if_present(list()).map(Option::unwrap_or_default);
        owners.with_context(|| format!("read directory {}", self.0.display()))
    }

    /// Writes a file, unless [`read`] would refuse it.
    fn write_whole(&self, path: &Path, text: &str) -> io::Result<()> {
        if text.len() as u64 > LARGEST {
            let reason = format!("the record has {} bytes, of at most {LARGEST}", text.len());
            return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
        }
        let mut file = self.open(path, File::options().create(true).truncate(true))?;
        file.write_all(text.as_bytes())
    }

    /// Opens a file for writing, as [`open_writable`] does. Creates the directory if it is missing. If a concurrent verb removes the empty directory before the file
    /// exists, this function creates the directory again.
    fn open(&self, path: &Path, options: &mut OpenOptions) -> io::Result<File> {
        for _ in 0..ATTEMPTS {
            match open_writable(path, options) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    make_directory(&self.0, 0o755)?;
                }
                opened => return opened,
            }
        }
        let reason = format!("another process keeps removing {}", self.0.display());
        Err(io::Error::other(reason))
    }

    /// Returns the path of a file of the attachment `owner`. The name of the file consists of
    /// `prefix` and the tag. Different tags have different paths, because the names in a tag
    /// contain no colon.
    fn file(&self, prefix: &str, owner: &str) -> PathBuf {
        let name = owner.replace('/', ":");
        self.0.join(format!("{prefix}{name}"))
    }
}

impl Retired {
    /// Returns the text of the record. Returns `None` if the attachment has no record, or if
    /// [`OwnerFiles::retire`] failed.
    pub fn text(&self) -> Option<&str> {
        self.text.as_ref().ok()?.as_deref()
    }

    /// Checks that the record, if there is one, could be renamed and read.
    ///
    /// # Errors
    /// It could not. The next DEL or GC tries again.
    pub fn expect_read(self) -> anyhow::Result<Self> {
        let text = Ok(self.text?);
        Ok(Self { text, ..self })
    }

    /// Removes the renamed record, and the incomplete file that a killed process may have left.
    ///
    /// # Errors
    /// - [`OwnerFiles::retire`] could not rename, read or remove the record. The record stays, so
    ///   that the next DEL or GC completes the removal.
    /// - This function cannot remove a file.
    pub fn remove(self) -> anyhow::Result<()> {
        self.text?;
        self.files.iter().try_for_each(|it| files::remove(it))
    }
}

/// Renames the record at `path` to `retired` and returns its text. Without a record at `path`,
/// returns the text of the one that an earlier call renamed, or `None` if there is none. If the
/// record cannot be renamed, removes it, because RELOAD must not find it any more.
fn take(path: &Path, retired: &Path) -> anyhow::Result<Option<String>> {
    if if_present(fs::rename(path, retired)).is_err()
        && let Some(text) = read(path)?
    {
        return files::remove(path).map(|()| Some(text));
    }
    read(retired)
}

/// Returns the text of a file; `None` if the file is missing, or is a pipe, a link or a device.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    let bytes = match if_present(read_regular(path, Links::Refuse, LARGEST)) {
        Err(_)
            if path
                .symlink_metadata()
                .is_ok_and(|it| !it.is_file() && !it.is_dir()) =>
        {
            None
        }
        bytes => bytes.with_context(|| format!("read {}", path.display()))?,
    };
    Ok(bytes.map(|it| String::from_utf8_lossy(&it).into_owned()))
}

/// Returns the tag in the file name `name`, which may start with [`NEW`] or [`RETIRED`]. Returns
/// `None` if the name contains no tag, such as the name of another program's file.
fn owner_of(name: &str) -> Option<String> {
    let prefixes = [NEW, RETIRED].into_iter();
    let name = prefixes.fold(name, |name, it| name.strip_prefix(it).unwrap_or(name));
    let names = name.strip_prefix("cni:")?;
    Some(format!("cni:{}", names.replace(':', "/")))
}

fn unwritten(path: &Path) -> String {
    let path = path.display();
    format!("write record {path}, for which the plugin needs to write below /run")
}

/// Prefix of the file name of an incomplete record, which [`OwnerFiles::create`] or
/// [`OwnerFiles::write`] is writing.
const NEW: &str = "new-";

/// Prefix of the file name of a record that DEL or GC has renamed.
const RETIRED: &str = "retired-";

/// Size limit of a record in bytes. A record has a few KiB; a request for all ports, of at most 8 MiB,
/// makes one of some 30 MiB.
const LARGEST: u64 = 64 << 20;

/// Maximum number of attempts to create a file in a directory that is missing. Two suffice, unless
/// a verb of another attachment removes the empty directory between them.
const ATTEMPTS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "cni:pods/c1/eth0";

    #[test]
    fn record_is_found_by_its_owner_and_removed_with_what_was_never_whole() {
        let directory = tempfile::tempdir().unwrap();
        let files = OwnerFiles(directory.path().join("portmap"));
        assert!(files.owners().unwrap().is_empty());
        assert_eq!(files.retire(OWNER).text(), None);
        assert!(files.create(OWNER, "a").unwrap());
        for text in ["b", ""] {
            assert!(!files.create(OWNER, text).unwrap());
            assert_eq!(files.find(OWNER).unwrap(), "a");
        }
        assert_eq!(fs::read_dir(&files.0).unwrap().count(), 1);
        for text in ["b", "c"] {
            files.write(OWNER, text, Writing::All).unwrap();
            assert_eq!(files.find(OWNER).unwrap(), text);
        }
        let half = directory.path().join("portmap/new-cni:pods:c2:net.1");
        fs::write(&half, "{").unwrap();
        fs::write(directory.path().join("portmap/readme"), "").unwrap();
        let owners = files.owners().unwrap();
        assert_eq!(Vec::from_iter(&owners), [OWNER, "cni:pods/c2/net.1"]);
        for owner in owners {
            files.retire(&owner).remove().unwrap();
        }
        assert!(files.owners().unwrap().is_empty() && !half.exists());
    }

    #[test]
    fn retired_record_is_read_and_removed_but_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let files = OwnerFiles(directory.path().to_owned());
        files.write(OWNER, "a", Writing::Existing).unwrap_err();
        files.write(OWNER, "a", Writing::All).unwrap();
        files.write(OWNER, "b", Writing::Existing).unwrap();
        assert!(files.has(OWNER));
        assert_eq!(files.retire(OWNER).text(), Some("b"));
        assert!(!files.has(OWNER));
        files.write(OWNER, "c", Writing::Existing).unwrap_err();
        files.find(OWNER).unwrap_err();
        assert_eq!(files.find_also_retired(OWNER).as_deref(), Some("b"));
        assert_eq!(Vec::from_iter(files.owners().unwrap()), [OWNER]);
        let again = files.retire(OWNER);
        assert_eq!(again.text(), Some("b"));
        again.remove().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    /// The test puts a directory in place of the retired record, so the record cannot be renamed.
    #[test]
    fn record_that_cannot_be_renamed_is_read_and_removed_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let files = OwnerFiles(directory.path().to_owned());
        files.write(OWNER, "a", Writing::All).unwrap();
        fs::create_dir(files.file(RETIRED, OWNER)).unwrap();
        assert_eq!(files.retire(OWNER).text(), Some("a"));
        assert!(!files.has(OWNER));
    }
}
