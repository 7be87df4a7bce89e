//! Records of attachments: one file for each attachment, in a directory that does not survive a
//! reboot. A record lists the addresses that the plugin added to firewalld, and the attachments
//! that had the same addresses before. A record with neither is an empty file.
//!
//! RELOAD restores only attachments with a record. DEL and GC rename ("retire") the record before
//! they remove anything. So either they find what RELOAD restored, or RELOAD finds the record
//! retired afterwards and removes what it restored.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use cni::Attachment;

/// An attachment that had an address before the attachment of the record. It gets the permission
/// back if it still exists when the other one ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Earlier {
    pub owner: String,
    pub address: IpAddr,
}

impl Earlier {
    /// Reads the earlier holders in the text of a record.
    pub fn read(text: &str) -> Vec<Self> {
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        let earlier = pairs.filter_map(|(owner, address)| {
            let address = address.parse().ok()?;
            Attachment::is_owner(owner).then(|| Self {
                owner: owner.to_owned(),
                address,
            })
        });
        earlier.collect()
    }
}

/// What [`write()`] found at the path of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// No record.
    Nothing,
    /// The record of an earlier ADD, whose earlier holders stay in the new record.
    Earlier,
}

/// Writes the record of `owner`.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(owner: &str, text: &str) -> anyhow::Result<Found> {
    let path = file("", owner);
    let create = || File::create_new(&path)?.write_all(text.as_bytes());
    let written = match create() {
        Err(error) if error.kind() == ErrorKind::NotFound => DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(DIRECTORY)
            .and_then(|()| create()),
        written => written,
    };
    let written = match written {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return rewrite(owner, text).map(|()| Found::Earlier);
        }
        written => written.map(|()| Found::Nothing),
    };
    written.with_context(|| format!("write record {}", path.display()))
}

/// Changes the text of the record of `owner`, but not the earlier holders in it. Does not create a
/// record, because a DEL may have retired it.
///
/// # Errors
/// The file is missing or cannot be written.
pub(crate) fn rewrite(owner: &str, text: &str) -> anyhow::Result<()> {
    let path = file("", owner);
    let rewrite = || {
        let there = fs::read_to_string(&path)?;
        let text = text.to_owned() + &lines(&Earlier::read(&there));
        if there == text {
            return Ok(());
        }
        let mut file = OpenOptions::new().write(true).truncate(true).open(&path)?;
        file.write_all(text.as_bytes())
    };
    rewrite().with_context(|| format!("rewrite record {}", path.display()))
}

/// Adds earlier holders of its addresses to the record of `owner`.
///
/// # Errors
/// The file is missing or cannot be written.
pub(crate) fn add_earlier(owner: &str, earlier: &[Earlier]) -> anyhow::Result<()> {
    let path = file("", owner);
    let add = || {
        let mut file = OpenOptions::new().append(true).open(&path)?;
        file.write_all(lines(earlier).as_bytes())
    };
    add().with_context(|| format!("add earlier holders to record {}", path.display()))
}

fn lines(earlier: &[Earlier]) -> String {
    let lines = earlier.iter();
    let lines = lines.map(|it| format!("\n{} {}", it.owner, it.address));
    lines.collect()
}

/// Returns the earlier holders in the record of `owner`.
pub(crate) fn earlier(owner: &str) -> Vec<Earlier> {
    let text = fs::read_to_string(file("", owner));
    text.map(|it| Earlier::read(&it)).unwrap_or_default()
}

/// Returns whether `owner` has a record that no DEL or GC has retired.
pub(crate) fn has(owner: &str) -> bool {
    file("", owner).exists()
}

/// Returns whether `owner` has a record, also if it is retired.
pub(crate) fn exists(owner: &str) -> bool {
    has(owner) || file(RETIRED, owner).exists()
}

/// Retires the record of `owner`. Returns its text, also if the record was already retired; `None`
/// without a record. An error of the renaming is ignored, because it must not prevent the removal.
pub(crate) fn retire(owner: &str) -> Option<String> {
    let retired = file(RETIRED, owner);
    fs::rename(file("", owner), &retired).ok();
    fs::read_to_string(retired).ok()
}

/// Removes the retired record of `owner`. A missing one counts as removed.
///
/// # Errors
/// A file exists and cannot be removed.
pub(crate) fn remove(owner: &str) -> anyhow::Result<()> {
    let path = file(RETIRED, owner);
    match fs::remove_file(&path) {
        Err(error) if MISSING.contains(&error.kind()) => Ok(()),
        // A read-only file system refuses to remove a missing file, too (EROFS).
        Err(error) if fs::exists(&path).unwrap_or(true) => {
            Err(error).with_context(|| format!("remove record {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the texts of the records that are not retired.
pub(crate) fn texts() -> Vec<String> {
    let owners = owners().unwrap_or_default().into_iter();
    let texts = owners.map(|it| fs::read_to_string(file("", &it)));
    texts.filter_map(Result::ok).collect()
}

/// Returns the owners of all records, including retired ones.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn owners() -> anyhow::Result<Vec<String>> {
    let action = || format!("read directory {DIRECTORY}");
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if MISSING.contains(&error.kind()) => return Ok(Vec::new()),
        entries => entries.with_context(action)?,
    };
    let mut owners = Vec::new();
    for entry in entries {
        let name = entry.with_context(action)?.file_name();
        let name = name
            .to_str()
            .map(|it| it.strip_prefix(RETIRED).unwrap_or(it));
        owners.extend(name.map(|it| it.replace(':', "/").replacen('/', ":", 1)));
    }
    Ok(owners)
}

/// Returns the path of the record of `owner`. No two owners have the same one, because the parts of
/// an owner contain no colon.
fn file(prefix: &str, owner: &str) -> PathBuf {
    let name = owner.replace('/', ":");
    PathBuf::from(DIRECTORY).join(format!("{prefix}{name}"))
}

const DIRECTORY: &str = "/run/cni/firewall";

/// Prefix of a retired record's file name.
const RETIRED: &str = "retired-";

/// Errors for a path without a file. The second is for a path below a file.
const MISSING: [ErrorKind; 2] = [ErrorKind::NotFound, ErrorKind::NotADirectory];
