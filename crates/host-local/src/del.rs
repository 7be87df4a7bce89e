//! DEL and GC: release addresses, DEL those of one attachment, GC those of attachments that the
//! runtime does not list.

use cni::{DelRequest, GcRequest, note};

use crate::{Holder, Lease, Storage, Store};

/// Releases every address of the attachment. An attachment without addresses is no error.
///
/// # Errors
/// - Code 7: the `ipam` section is missing, or `dataDir` is not an absolute path.
/// - Code 11: another process holds the lock for too long.
/// - The leases cannot be listed, or a lease file cannot be removed.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    let storage = Storage::of(&request.network)?;
    cni::step("wait for the lock");
    let Some(store) = Store::open_existing(&storage, &request.network.name)? else {
        return Ok(());
    };
    cni::step("release addresses");
    store.release(&store.leases_of(&request.attachment)?)
}

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
        note!("release {address} of {holder}: the list of valid attachments does not name it");
    }
    store.release(&stale)
}
