//! Whether an attachment that holds a port lives.

use std::io;
use std::path::Path;

use netlink::Connection;

use crate::record::{Identity, Record, Records};

/// The attachment that `owner` names is gone for sure. What cannot be told counts as alive.
pub(crate) fn is_gone(records: &Records, owner: &str) -> bool {
    records.read(owner).is_some_and(|record| is_over(&record))
}

/// The sandbox is no more, or no longer bears the address that ports lead to.
pub(crate) fn is_over(record: &Record) -> bool {
    match Identity::of(&record.netns) {
        Ok(identity) if identity == record.identity => lacks_addresses(record).unwrap_or(false),
        Ok(_) => true,
        // A path below /proc is the runtime's own way in, and may be closed while others are not.
        Err(error) => {
            error.kind() == io::ErrorKind::NotFound && !record.netns.starts_with(Path::new("/proc"))
        }
    }
}

fn lacks_addresses(record: &Record) -> Result<bool, netlink::Error> {
    let Some((_namespace, sandbox)) = Connection::open_if_present(&record.netns)? else {
        return Ok(true);
    };
    let Some(link) = sandbox.find_link(&record.interface)? else {
        return Ok(true);
    };
    let addresses = sandbox.addresses(link.index)?;
    let bears = |address| addresses.iter().any(|it| it.address.ip() == address);
    Ok(!record.addresses.iter().any(|address| bears(*address)))
}
