//! DEL: restores the settings that the interface had before ADD.

use cni::{DelRequest, files, note, note_failure};
use netlink::{Connection, found};

use crate::config;
use crate::record::{self, Namespace, Record};

/// Restores the interface's settings from the record that ADD wrote, and removes the record.
/// Restores nothing if the request names no sandbox, or if the record names another sandbox.
///
/// DEL only logs a failure to restore the interface on standard error, as the Go plugin does.
/// Processes in the sandbox can cause such a failure, and must not be able to make DEL fail.
///
/// Two attachments can have the same path for their records ([`Record::may_be_of`]). DEL does not
/// touch the record of another attachment, and then restores nothing.
///
/// # Errors
/// `dataDir` is invalid, the sandbox cannot be entered, or the record cannot be read or removed. The
/// record stays.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    let path = record::path(&config::data_dir(&request.network)?, &request.attachment);
    if let Some(record) = Record::read(&path)? {
        if !record.may_be_of(&request.attachment) {
            note!(
                "{} is not removed: it is the record of {}",
                path.display(),
                record.owner
            );
            return Ok(());
        }
        cni::step("restore the interface");
        restore(request, &record)?;
    }
    cni::step("remove the record");
    files::remove(&path)
}

/// # Errors
/// The sandbox cannot be entered, which no process there can cause.
fn restore(request: &DelRequest, record: &Record) -> anyhow::Result<()> {
    let Some(netns) = &request.netns else {
        return Ok(());
    };
    let Some((_, connection)) = Connection::open_if_present(netns)? else {
        return Ok(());
    };
    let now = Namespace::of(&connection, netns);
    if record.namespace.is_same(&now) != Some(false) {
        let interface = request.attachment.interface.as_str();
        note_failure(found(record.former.apply(&connection, interface)).map(drop));
    }
    Ok(())
}
