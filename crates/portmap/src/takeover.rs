//! Takes everything from an attachment that has ended.

use attach::coded;
use nft::Connection;

use crate::record::{self, Record};
use crate::{firewall, handover, holder, localnet, standby};

/// Returns whether the attachment of `owner` has ended. If so, removes everything of it, which
/// frees its ports, and deletes the conntrack entries of connections to its container. With such an
/// entry, packets of a client that reuses its source port would still be translated to the old
/// address.
///
/// A concurrent ADD may attach the same container again. That ADD writes its record before it
/// changes any rule, so this function notices the new record and leaves the elements of that ADD
/// alone.
///
/// # Errors
/// The kernel refuses a request, or a file cannot be removed.
pub(crate) fn take_over_if_gone(connection: &Connection, owner: &str) -> anyhow::Result<bool> {
    let record = Record::read(owner);
    if !holder::is_gone(connection, owner, record.as_ref()) {
        return Ok(false);
    }
    let is_unchanged = || Record::read(owner) == record;
    if is_unchanged() {
        standby::leave(owner)?;
    }
    let displaced = record.as_ref().map_or(&[][..], |it| &it.displaced);
    let removed = handover::remove_while(connection, owner, displaced, is_unchanged);
    let removed = removed.map_err(coded)?;
    firewall::delete_translated(connection, &removed.elements, |_| true);
    if is_unchanged() {
        localnet::release(owner, record.as_ref())?;
        record::files().retire(owner).remove()?;
    }
    Ok(true)
}
