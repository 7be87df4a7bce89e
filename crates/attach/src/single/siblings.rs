//! Links of other attachments, as their records describe them.

use anyhow::bail;
use cni::Error;

use crate::Witness;

/// Returns the record of an attachment other than `own` whose link may exist, and whose description
/// `is_meant` accepts.
pub(super) fn find(own: &str, is_meant: impl Fn(&str) -> bool) -> Option<Witness> {
    let others = Witness::each().ok()?.filter(|(owner, _)| owner != own);
    let mut others = others.filter_map(|(_, witness)| witness.ok().flatten());
    others.find(|it| is_meant(&it.link) && it.presence().reason().is_some())
}

/// Checks that no other attachment has an ipvlan link of `parent` in another mode than `link`, the
/// description of the new one: the kernel would change the mode of all (`ipvlan_set_port_mode`).
///
/// # Errors
/// Code 7 names the other attachment.
pub(super) fn expect_mode(own: &str, link: &str, parent: &str) -> anyhow::Result<()> {
    let (kind, end) = (
        |it: &str| it.starts_with("ipvlan "),
        format!(" of {parent}"),
    );
    let Some(other) = find(own, |it| kind(it) && it.ends_with(&end)) else {
        return Ok(());
    };
    if other.link == link {
        return Ok(());
    }
    let reason = format!(
        "{} has {}, and all ipvlan links of a link have one mode",
        other.owner, other.link
    );
    bail!(Error::invalid("mode", reason))
}
