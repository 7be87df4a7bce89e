//! `ps`: who is attached, by all that knows of it.

mod row;
mod table;

use cni::note;
use node::Node;
use runtime::Directories;

use self::row::Row;
pub use self::table::Table;

/// Each attachment that a cache, a link, an element or a lease knows of. What cannot be read is
/// told on standard error.
pub fn ps(directories: &Directories) -> Table {
    let node = Node::attachments(directories);
    for (_, reason) in &node.unread {
        note(format_args!("cnitool: not looked at: {reason}"));
    }
    Table(Row::all(&node))
}
