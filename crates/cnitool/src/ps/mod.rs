//! `ps`: who is attached, by all that knows of it.

mod row;
mod table;

use cni::note;

use self::row::Row;
pub use self::table::Table;
use crate::node::Node;
use crate::settings::Settings;

/// Each attachment that a cache, a link, an element or a lease knows of. What cannot be read is
/// told on standard error.
pub fn ps(settings: &Settings) -> Table {
    let node = Node::attachments(settings);
    for (_, reason) in &node.unread {
        note(format_args!("cnitool: not looked at: {reason}"));
    }
    Table(Row::all(&node))
}
