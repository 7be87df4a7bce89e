//! DEL: what the attachment holds, whatever the ranges are now.

use cni::DelRequest;

use crate::storage::Storage;
use crate::store::Store;

/// Gives back every address that the attachment holds; holding none is success.
///
/// # Errors
/// The files cannot be read or removed.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    let storage = Storage::of(&request.network)?;
    cni::step("wait for the lock");
    let Some(store) = Store::open_existing(&storage, &request.network.name)? else {
        return Ok(());
    };
    cni::step("release addresses");
    store.release(&store.leases_of(&request.attachment)?)
}
