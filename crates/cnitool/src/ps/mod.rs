//! `ps`: lists attachments, as cached results, links, elements of `nf_tables` and leases show them.

mod row;
mod table;

use cni::note;
use node::Node;
use runtime::Directories;

use self::row::Row;
pub use self::table::Table;

/// Returns each attachment that has a cached result, a link, an element of `nf_tables` or a lease.
/// Reports on standard error which parts of the node cannot be read.
pub fn ps(directories: &Directories) -> Table {
    let node = Node::attachments(directories);
    for (_, reason) in &node.unread {
        note(format_args!("cnitool: not read: {reason}"));
    }
    Table {
        rows: Row::all(&node),
        is_partial: !node.unread.is_empty(),
    }
}
