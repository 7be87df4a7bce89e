//! GC of links that live in sandboxes.

use std::collections::BTreeSet;

use anyhow::Context as _;
use cni::{GcRequest, Verb, note};

use crate::{Presence, Witness, forward, uses_link};

/// Removes what those of the attachments `owners` have that belong to this network and that the runtime
/// does not list: the links by `remove`, which the log calls `step`, their leases and their records. If
/// the IPAM plugin uses the links, the leases come first.
///
/// # Errors
/// At least one step failed. An attachment whose link may still exist keeps its lease and its record.
pub fn remove_stale(
    request: &GcRequest,
    step: &'static str,
    owners: impl IntoIterator<Item = String>,
    remove: impl Fn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let is_stale = request.stale();
    let stale: BTreeSet<_> = owners.into_iter().filter(|it| is_stale(it)).collect();
    let release = |kept: Vec<&str>| {
        cni::step("release leases");
        let network = request.keeping(kept.into_iter());
        let network = network.context("the leases stay: a link whose tag has no names may exist");
        forward(&network?, Verb::Gc)
    };
    // `release` reports an invalid configuration.
    let early = uses_link(&request.network).unwrap_or_default().then(|| {
        let names = stale.iter().map(String::as_str);
        names.filter(|it| is_unknown(it)).collect::<Vec<_>>()
    });
    let released_early = early.clone().map(&release);
    cni::step(step);
    let removed: Vec<_> = stale.iter().map(|it| (it, remove(it))).collect();
    let kept = removed.iter().filter(|it| it.1.is_err());
    let kept: Vec<_> = kept.map(|it| it.0.as_str()).collect();
    // What was unknown before may be removed now.
    let released = (early.as_ref() != Some(&kept)).then(|| release(kept));
    cni::step("remove records");
    let records = removed.into_iter().map(|(owner, removed)| {
        removed?;
        Witness::remove(owner)?;
        note!("removed {owner}, which the runtime does not list");
        Ok(())
    });
    let records: Vec<_> = records.collect();
    let released = released_early.into_iter().chain(released);
    cni::all(released.chain(records))
}

/// Returns whether the sandbox of the attachment may exist, but cannot be found.
fn is_unknown(owner: &str) -> bool {
    let presence = Witness::find(owner).map(|it| it.map(|it| it.presence()));
    matches!(
        presence,
        Ok(Some(Presence::Unknown(_) | Presence::Deserted(_))) | Err(_)
    )
}
