//! GC: leases of attachments that nobody lists.

use cni::{GcRequest, note};

use crate::config;
use crate::lease::Holder;
use crate::store::Store;

/// Gives back every address of the network whose holder is not listed.
///
/// # Errors
/// All files that could not be removed; the others are.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let data_dir = config::data_dir_of(&request.network)?;
    let Some(store) = Store::open_existing(&data_dir, &request.network.name)? else {
        return Ok(());
    };
    let valid: Vec<_> = request.valid_attachments().collect();
    let is_listed = |holder: &Holder| {
        valid
            .iter()
            .any(|it| holder.is(it) || holder.is_old_entry_of(it))
    };
    let mut failures = Vec::new();
    for lease in store.leases()? {
        if is_listed(&lease.holder) {
            continue;
        }
        let container = &lease.holder.container;
        note(format_args!(
            "{} of container {container} is listed no more: released",
            lease.address
        ));
        failures.extend(
            store
                .release(lease.address)
                .err()
                .map(|error| format!("{error:#}")),
        );
    }
    if failures.is_empty() {
        return Ok(());
    }
    anyhow::bail!("{}", failures.join("; "))
}
