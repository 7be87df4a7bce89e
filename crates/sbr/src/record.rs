//! Records: one file for each attachment, with its sandbox and what ADD adds there. DEL and GC need
//! it: the rules of a sandbox do not show their owner, and GC gets no path of a sandbox.

use std::net::IpAddr;

use attach::{OwnerFiles, Witness, Writing};
use cni::{Attachment, note};
use serde::{Deserialize, Serialize};

/// What an ADD adds to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The sandbox, and the name of the interface there.
    pub sandbox: Witness,
    /// The rules, each with the table that it looks up.
    pub rules: Vec<Ruled>,
}

/// A source address and its table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ruled {
    /// The address.
    pub from: IpAddr,
    /// Number of the table.
    pub table: u32,
    /// ADD filled the table.
    pub is_own: bool,
}

impl Record {
    /// Reads the record in `text`. Returns `None`, and reports this on standard error, if `text` is
    /// not a record.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let record = serde_json::from_str(text);
        if record.is_err() {
            note(format_args!("a file in {DIRECTORY} is not a valid record"));
        }
        record.ok()
    }

    /// Writes the record of `attachment`.
    pub(crate) fn write(&self, attachment: &Attachment) -> anyhow::Result<()> {
        let text = serde_json::to_string(self)?;
        files().write(&attachment.owner(), &text, Writing::All)
    }
}

/// Gives the attachment `owner` the record `text` again; none, if it had none.
pub(crate) fn restore(owner: &str, text: Option<String>) -> anyhow::Result<()> {
    match text {
        Some(text) => files().write(owner, &text, Writing::All),
        None => files().retire(owner).remove(),
    }
}

/// Returns the directory of all records.
pub(crate) fn files() -> OwnerFiles {
    OwnerFiles(DIRECTORY.into())
}

const DIRECTORY: &str = "/run/cni/sbr";
