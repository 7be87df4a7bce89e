//! Finds the device on the host, and refuses links that must stay there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cni::files::if_present;
use cni::{Attachment, note};
use netlink::{Connection, Link, LinkKind};

use crate::config::Selector;

/// Returns the host's link that `selector` names; `None` if the host has no such link.
///
/// # Errors
/// A directory of sysfs cannot be read, or the kernel refuses a request.
pub(crate) fn find(host: &Connection, selector: &Selector) -> anyhow::Result<Option<Link>> {
    match selector {
        Selector::Name(name) => Ok(host.find_link(name)?),
        Selector::Mac(mac) => {
            let links = host.links()?.into_iter();
            let links = links.filter(|it| it.mac == Some(*mac));
            // A virtual link may have the MAC of the device below it.
            Ok(links.min_by_key(|it| it.kind != LinkKind::Physical))
        }
        Selector::Directory(directory) => {
            let places = directories_of_links(directory)?;
            let has = |it: &Link| places.iter().any(|place| place.join(&it.name).exists());
            let links = host.links()?.into_iter().filter(has);
            Ok(links.min_by(|one, other| one.name.cmp(&other.name)))
        }
        Selector::UserSpace => Ok(None),
    }
}

/// Returns the directories that list the links of the device with this directory. The link of a virtio
/// device is one directory further down.
fn directories_of_links(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = if_present(fs::read_dir(directory));
    let entries = entries.with_context(|| format!("read {}", directory.display()))?;
    let below = entries.into_iter().flatten().flatten();
    let virtio = below.filter(|it| it.file_name().to_string_lossy().starts_with("virtio"));
    let devices = [directory.to_owned()]
        .into_iter()
        .chain(virtio.map(|it| it.path()));
    Ok(devices.map(|it| it.join("net")).collect())
}

/// Rejects a link that cannot leave the host, or that belongs to another attachment. Only reports a
/// link with the host's default route, because the reference moves it, too.
///
/// # Errors
/// The link must stay, or the kernel refuses a request.
pub(crate) fn expect_movable(host: &Connection, link: &Link) -> anyhow::Result<()> {
    let name = &link.name;
    if matches!(link.kind, LinkKind::Loopback | LinkKind::Bridge) {
        bail!(
            "{name} cannot leave the host, because it is a {} link; choose another device",
            link.kind
        );
    }
    let owner = link.alias.as_deref().unwrap_or_default();
    if link.kind == LinkKind::Veth && Attachment::is_owner(owner) {
        bail!("{name} is the host's end of {owner}; choose another device");
    }
    let routes = host.default_routes_in_use()?;
    if routes.is_empty() {
        return Ok(());
    }
    let links = host.links()?;
    let has_route = |user: &Link| routes.iter().any(|it| it.uses(user.index));
    if users(link, &links).into_iter().any(has_route) {
        note!("the host's default route uses {name}, and fails when the device leaves");
    }
    Ok(())
}

/// Returns `link` and the links that send through it: its bridge or bond, its VLANs, and theirs.
fn users<'l>(link: &'l Link, links: &'l [Link]) -> Vec<&'l Link> {
    let mut users = vec![link];
    let is_next = |it: &&Link, users: &[&Link]| {
        let is_above = |below: &&Link| {
            let is_on = it.peer == Some(below.index) && it.peer_namespace.is_none();
            let is_on = is_on && it.kind != LinkKind::Veth;
            is_on || below.master == Some(it.index)
        };
        users.iter().all(|user| user.index != it.index) && users.iter().any(is_above)
    };
    while let Some(next) = links.iter().find(|it| is_next(it, &users)) {
        users.push(next);
    }
    users
}
