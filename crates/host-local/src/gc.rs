//! GC: releases the leases of attachments that the runtime does not list as valid.

use cni::{GcRequest, note};

use crate::lease::{Holder, Lease};
use crate::storage::Storage;
use crate::store::Store;

/// Releases every address of the network whose holder the runtime does not list as a valid
/// attachment.
///
/// # Errors
/// Some files cannot be removed: the error names each. All other files are removed.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let storage = Storage::of(&request.network)?;
    cni::step("wait for the lock");
    let Some(store) = Store::open_existing(&storage, &request.network.name)? else {
        return Ok(());
    };
    cni::step("release addresses");
    let own = request.valid.iter().map(Holder::of);
    let old = request.valid.iter().map(Holder::old_entry_of);
    let listed = own.chain(old).collect();
    let stale = store.leases_except(&listed)?;
    for Lease { address, holder } in &stale {
        note(format_args!(
            "release {address} of {holder}: the list of valid attachments does not name it"
        ));
    }
    store.release(&stale)
}
