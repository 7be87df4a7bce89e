//! `ps`: who is attached, by all that knows of it.

mod row;
mod table;

use std::io::Write as _;

use anyhow::Context as _;
use cni::note;

use self::row::Row;
use crate::cli::{Format, unless_closed};
use crate::node::Node;
use crate::settings::Settings;

/// Prints a line for each attachment that a cache, a link, an element or a lease knows of.
///
/// # Errors
/// Standard output cannot be written. What cannot be read is told on standard error.
pub fn ps(settings: &Settings, format: Format) -> anyhow::Result<()> {
    let node = Node::attachments(settings);
    for reason in &node.unread {
        note(format_args!("cnitool: not looked at: {reason}"));
    }
    let rows = Row::all(&node);
    let mut stdout = anstream::stdout().lock();
    let written = match format {
        Format::Text => table::text(&rows, &mut stdout),
        Format::Json => table::json(&rows, &mut stdout),
    };
    let flushed = written.and_then(|()| stdout.flush());
    unless_closed(flushed).context("write the attachments to stdout")
}
