//! Records of attachments: one file for each attachment, in a directory that does not survive a
//! reboot. A record lists the addresses that the plugin added to firewalld, and the attachments
//! that had the same addresses before. A record with neither is an empty file.
//!
//! RELOAD restores only attachments with a record. DEL and GC retire (rename) the record before
//! they remove anything. A concurrent RELOAD may restore something after that removal. It then
//! finds that the record has been retired, and removes what it restored.

use std::net::IpAddr;

use attach::{OwnerFiles, Writing};
use cni::Attachment;

use crate::firewalld::Sources;

/// An attachment that had an address before another attachment took the address over. The other
/// attachment's record lists the earlier one. DEL of the other attachment gives the permission for
/// the address back, if the earlier attachment still exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Earlier {
    pub owner: String,
    pub address: IpAddr,
}

impl Earlier {
    /// Reads the earlier holders of addresses from the text of a record.
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

pub(crate) fn files() -> OwnerFiles {
    OwnerFiles("/run/cni/firewall".into())
}

/// Writes the record of `owner`, unless it exists. Returns whether the record is new. A DEL or GC
/// that failed may have left a retired (renamed) record. The new record also lists the content of
/// the retired one, because the next DEL replaces the retired record with this one.
///
/// # Errors
/// - The file cannot be written.
/// - The retired record lists sources of another zone.
pub(crate) fn create(owner: &str, sources: Option<&Sources>) -> anyhow::Result<bool> {
    match merged(["", &retired(owner)], sources) {
        Err(_) if files().has(owner) => Ok(false),
        text => files().create(owner, &text?),
    }
}

/// Adds `sources`, addresses in a zone of firewalld, to the record of `owner`, and the content of a
/// retired record, as [`create`] does. What the record already lists stays listed, because DEL
/// needs it. Does not create a missing record, because a concurrent DEL may have retired (renamed)
/// it.
///
/// # Errors
/// - The file is missing or cannot be written.
/// - The record or the retired record lists sources of another zone.
pub(crate) fn add_sources(owner: &str, sources: Option<&Sources>) -> anyhow::Result<()> {
    let retired = retired(owner);
    change(owner, |there| merged([there, &retired], sources))
}

/// Returns the text of the retired record of `owner`; an empty text if there is none.
fn retired(owner: &str) -> String {
    files().find_retired(owner).unwrap_or_default()
}

/// Returns the text of a record that lists `sources` and all that the records with these `texts`
/// list.
///
/// # Errors
/// Two of them list sources of different zones.
fn merged(texts: [&str; 2], sources: Option<&Sources>) -> anyhow::Result<String> {
    let listed = texts.into_iter().filter_map(Sources::read);
    let all = sources.cloned().into_iter().chain(listed);
    let all = all.map(Ok).reduce(|all, it| all?.with(&it?));
    let mut earlier = Vec::new();
    for it in texts.into_iter().flat_map(Earlier::read) {
        if !earlier.contains(&it) {
            earlier.push(it);
        }
    }
    let text = all.transpose()?.map(|it| it.text());
    Ok(text.unwrap_or_default() + &lines(&earlier))
}

/// Adds `earlier`, attachments that had the addresses of `owner` before, to the record of `owner`.
pub(crate) fn add_earlier(owner: &str, earlier: &[Earlier]) -> anyhow::Result<()> {
    change(owner, |there| {
        let mut new = earlier.to_vec();
        let listed = Earlier::read(there);
        new.retain(|it| !listed.contains(it));
        Ok(there.to_owned() + &lines(&new))
    })
}

fn change(owner: &str, text: impl Fn(&str) -> anyhow::Result<String>) -> anyhow::Result<()> {
    let there = files().find(owner)?;
    let text = text(&there)?;
    if there == text {
        return Ok(());
    }
    files().write(owner, &text, Writing::Existing)
}

fn lines(earlier: &[Earlier]) -> String {
    let lines = earlier.iter();
    let lines = lines.map(|it| format!("\n{} {}", it.owner, it.address));
    lines.collect()
}

/// Returns the attachments that had the addresses of `owner` before, from the record of `owner`;
/// none if the record is missing or unreadable.
pub(crate) fn earlier(owner: &str) -> Vec<Earlier> {
    let text = files().find(owner);
    text.map(|it| Earlier::read(&it)).unwrap_or_default()
}

/// Returns the texts of all readable records, except those that a DEL or GC has retired (renamed).
pub(crate) fn texts() -> Vec<String> {
    let owners = files().owners().unwrap_or_default().into_iter();
    owners.filter_map(|it| files().find(&it).ok()).collect()
}
