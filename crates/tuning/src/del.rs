//! DEL: restores the settings that the interface had before ADD.

use cni::{DelRequest, note};
use netlink::{Connection, Error};

use crate::config;
use crate::record::{self, Record};

/// Restores the interface, if it is still in the sandbox of ADD, and removes the record. If the
/// interface cannot be restored, DEL only logs the failure, as the Go plugin does, because
/// processes in the sandbox could cause such a failure. The path of the record may have the record
/// of another attachment ([`Record::may_be_of`]). DEL leaves that record alone.
///
/// # Errors
/// `dataDir` is invalid, or the record cannot be read or removed.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    let path = record::path(&config::data_dir(&request.network)?, &request.attachment);
    if let Some(record) = Record::read(&path)? {
        if !record.may_be_of(&request.attachment) {
            note(format_args!(
                "{} stays, because it is the record of {}",
                path.display(),
                record.owner
            ));
            return Ok(());
        }
        cni::step("restore the interface");
        if let Err(error) = restore(request, &record) {
            note(format_args!("{:#}", anyhow::Error::from(error)));
        }
    }
    cni::step("remove the record");
    record::remove(&path)
}

fn restore(request: &DelRequest, record: &Record) -> Result<(), Error> {
    let is_same = |it: u64| record.sandbox.is_none_or(|of_add| of_add == it);
    let Some(netns) = request
        .netns
        .as_ref()
        .filter(|it| record::sandbox(it).is_some_and(is_same))
    else {
        return Ok(());
    };
    let Some((_, connection)) = Connection::open_if_present(netns)? else {
        return Ok(());
    };
    match record
        .former
        .apply(&connection, request.attachment.interface.as_str())
    {
        Err(error) if error.is_not_found() => Ok(()),
        outcome => outcome,
    }
}
