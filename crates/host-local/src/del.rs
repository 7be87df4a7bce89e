//! DEL: releases the attachment's addresses, even those outside the currently configured ranges.

use cni::DelRequest;

use crate::storage::Storage;
use crate::store::Store;

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
