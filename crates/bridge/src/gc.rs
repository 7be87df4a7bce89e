//! GC: host links of attachments that nobody lists, then the leases.

use std::collections::HashSet;

use cni::{Attachment, GcRequest, Verb, note};
use netlink::Connection;

use crate::del;

/// Removes what belongs to this network and to no listed attachment.
///
/// # Errors
/// All that went wrong; every step is tried.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let host = Connection::open()?;
    let valid: HashSet<_> = request.valid_attachments().map(|it| it.owner()).collect();
    let network = &request.network.name;
    let mut outcomes = Vec::new();
    for link in host.links()? {
        let Some(owner) = &link.alias else { continue };
        if Attachment::is_owner_in(owner, network) && !valid.contains(owner) {
            note(format_args!(
                "{} of {owner} is listed no more: deleted",
                link.name
            ));
            outcomes.push(del::delete(&host, &link));
        }
    }
    outcomes.push(del::forward(&request.network, Verb::Gc));
    del::all(outcomes)
}
