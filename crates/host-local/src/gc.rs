//! GC: leases of attachments that nobody lists.

use cni::{GcRequest, note};

use crate::config;
use crate::lease::Holder;
use crate::store::{Lease, Store};

/// Gives back every address of the network whose holder is not listed.
///
/// # Errors
/// All files that could not be removed; the others are.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let place = config::place_of(&request.network)?;
    let Some(store) = Store::open_existing(&place, &request.network.name)? else {
        return Ok(());
    };
    let valid: Vec<_> = request.valid_attachments().collect();
    let is_listed = |holder: &Holder| valid.iter().any(|it| holder.may_be(it));
    let mut stale = store.leases()?;
    stale.retain(|lease| !is_listed(&lease.holder));
    for Lease { address, holder } in &stale {
        note(format_args!(
            "release {address} of {holder}, listed no more"
        ));
    }
    store.release_all(stale.iter().map(|lease| lease.address))
}
