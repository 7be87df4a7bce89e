//! Links of other attachments, as their records name them.

use anyhow::bail;
use cni::{Attachment, Error};
use netlink::{Link, LinkKind};

use super::desired::Place;
use crate::{Presence, Witness};

/// Returns the owner of the link with this description, other than `own`.
pub(super) fn owner_of(words: &str, own: &str) -> Option<String> {
    let mut others = others(own);
    others.find(|it| it.link == words).map(|it| it.owner)
}

/// Checks that no other attachment has an ipvlan link in another mode than `kind` above what `parent`
/// leads to: the kernel would change the mode of all (`ipvlan_set_port_mode`). `new` and
/// `own` are the record and the tag of the new link's attachment, and `place` that of its parent.
///
/// # Errors
/// Code 7 names the other attachment.
pub(super) fn expect_mode(
    (new, own): (&Witness, &str),
    kind: &LinkKind,
    (parent, place): (&Link, Place),
) -> anyhow::Result<()> {
    let port = match parent.kind {
        // The kernel makes the new link above the parent's own parent.
        LinkKind::Ipvlan(_) => parent.peer,
        _ => Some(parent.index),
    };
    let is_on_host = place == Place::Host || is_above_another_namespace(parent);
    for other in others(own).filter(|it| it.link.starts_with("ipvlan ")) {
        let is_same_port = |it: &Link| {
            let is_near = is_above_another_namespace(it) || other.is_same_sandbox(new);
            it.peer == port && is_near && is_above_another_namespace(it) == is_on_host
        };
        let Some(link) = link_of(&other).filter(is_same_port) else {
            continue;
        };
        if link.kind == *kind {
            return Ok(());
        }
        let reason = format!(
            "{} has {}, and all ipvlan links of a link have one mode",
            other.owner, link.kind
        );
        bail!(Error::invalid("mode", reason));
    }
    Ok(())
}

/// Returns whether the link is an ipvlan link whose parent is in another namespace.
fn is_above_another_namespace(link: &Link) -> bool {
    matches!(link.kind, LinkKind::Ipvlan(_)) && link.peer_namespace.is_some()
}

/// Returns the ipvlan link of the attachment, if its sandbox is found.
fn link_of(witness: &Witness) -> Option<Link> {
    let Presence::Present(_, sandbox) = witness.presence() else {
        return None;
    };
    let interface = Attachment::of_owner(&witness.owner)?.interface;
    let link = sandbox.find_link(interface.as_str()).ok()??;
    matches!(link.kind, LinkKind::Ipvlan(_)).then_some(link)
}

fn others(own: &str) -> impl Iterator<Item = Witness> {
    let all = Witness::each().into_iter().flatten();
    let others = all.filter(move |(owner, _)| owner != own);
    others.filter_map(|(_, witness)| witness.ok().flatten())
}
