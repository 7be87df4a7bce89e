//! Finds the device on the host, and refuses links that must stay there.

use std::path::Path;

use anyhow::{Context as _, bail};
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
        Selector::Directory(directory) => match link_in(directory)? {
            Some(name) => Ok(host.find_link(&name)?),
            None => Ok(None),
        },
        Selector::UserSpace => Ok(None),
    }
}

/// Returns the name of the link of the device with this directory; `None` if the device has no link
/// in this network namespace. The link of a virtio device is one directory further down.
fn link_in(directory: &Path) -> anyhow::Result<Option<String>> {
    let names = |directory: &Path| -> anyhow::Result<Vec<String>> {
        let entries = cni::files::if_present(std::fs::read_dir(directory));
        let entries = entries.with_context(|| format!("read {}", directory.display()))?;
        let names = entries.into_iter().flatten().filter_map(|entry| {
            let name = entry.ok()?.file_name();
            name.into_string().ok()
        });
        let mut names: Vec<_> = names.collect();
        names.sort();
        Ok(names)
    };
    let mut directories = vec![directory.to_owned()];
    let below = names(directory)?.into_iter();
    let virtio = below.filter(|name| name.starts_with("virtio"));
    directories.extend(virtio.map(|name| directory.join(name)));
    for directory in directories {
        if let Some(name) = names(&directory.join("net"))?.into_iter().next() {
            return Ok(Some(name));
        }
    }
    Ok(None)
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
