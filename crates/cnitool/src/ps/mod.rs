//! `ps`: lists attachments from all traces of them.

mod row;
mod table;

use cni::note;
use node::Node;
use runtime::Directories;

use self::row::Row;
pub use self::table::Table;

/// Returns each attachment of which the cache, a link, an element or a lease exists. Parts that
/// cannot be read are reported on standard error.
pub fn ps(directories: &Directories) -> Table {
    let node = Node::attachments(directories);
    for (_, reason) in &node.unread {
        note(format_args!("cnitool: not read: {reason}"));
    }
    Table(Row::all(&node))
}
