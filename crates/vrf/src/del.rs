//! DEL and GC: move the interface out of the VRF, and delete a VRF without other ports.

use attach::{SandboxLock, SandboxRecord as _, enter_if_present};
use cni::{DelRequest, GOING_ON, GcRequest, or_note};

use crate::Config;
use crate::record::{Record, leave};

/// Moves the interface out of the VRF with its addresses and routes, deletes the VRF if it has no
/// other port, and removes the record.
///
/// # Errors
/// The sandbox cannot be entered, or the record cannot be read or removed.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("move the interface out of the VRF");
    Record::del(request, leave_unrecorded)
}

/// GC: does the same for the attachments of this network that the runtime does not list.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    cni::step("move the interface out of the VRF");
    Record::gc(request)
}

/// Finds the VRF by the configuration.
fn leave_unrecorded(request: &DelRequest) -> anyhow::Result<()> {
    let Some((namespace, connection)) = enter_if_present(request.netns.as_deref())? else {
        return Ok(());
    };
    let Some(config) = or_note(Config::parse(&request.network), GOING_ON) else {
        return Ok(());
    };
    let _lock = SandboxLock::take(&namespace)?;
    let interface = request.attachment.interface.as_str();
    leave(&connection, interface, (config.name.as_str(), None))
}
