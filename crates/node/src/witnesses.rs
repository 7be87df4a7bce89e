//! Reads the records of sandboxes in which links without an end on the host live.

use std::collections::BTreeMap;

use attach::{Presence, Witness};

/// What is known of a link that lives in a sandbox alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Witnessed {
    /// Its sandbox exists.
    Present,
    /// Its sandbox exists no more.
    Gone,
    /// This process cannot find out. The field is the reason.
    Unknown(String),
}

/// Returns what is known of the links that have a record, by the attachments' tags.
///
/// # Errors
/// The directory of the records cannot be read.
pub(super) fn read() -> anyhow::Result<BTreeMap<String, Witnessed>> {
    let all = Witness::all()?.into_iter();
    Ok(all.map(|(owner, it)| (owner, judge(it))).collect())
}

impl Witnessed {
    /// Returns what is known now of the link of the attachment with the tag `owner`; `None` if it has no
    /// record.
    pub fn of(owner: &str) -> Option<Self> {
        let found = Witness::find(owner).transpose()?;
        Some(judge(found.map(Some)))
    }
}

fn judge(witness: anyhow::Result<Option<Witness>>) -> Witnessed {
    let presence = witness.map(|it| it.map_or(Presence::Gone, |it| it.presence()));
    match presence {
        Ok(Presence::Present(..)) => Witnessed::Present,
        Ok(presence) => presence
            .reason()
            .map_or(Witnessed::Gone, Witnessed::Unknown),
        Err(error) => Witnessed::Unknown(format!("{error:#}")),
    }
}
