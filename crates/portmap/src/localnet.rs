//! Manages the sysctl `route_localnet` of the host's links towards containers. The sysctl permits
//! packets from 127.0.0.1 to leave through the link.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use attach::{OwnerFiles, coded};
use cni::{Attachment, note};
use netlink::{Connection, Link, LinkChange, Request, found};
use netns::Sysctl;
use nft::{Element, IpVersion, Value};

use crate::names::LINKS;
use crate::plan::Plan;
use crate::raw::LocalhostGuard;
use crate::record::Record;
use crate::{guard, table};

/// Returns each container address in `pods` with the host's link towards it. Omits an address
/// without a route, and reports it on standard error.
///
/// `owner` is the tag of the attachment, `host_link` the index of the host's end of its veth pair,
/// if there is one. If two containers have one address, the route to it may lead to the other
/// container: then the link is `host_link` instead.
pub(crate) fn own_links(
    host: &Connection,
    pods: &[IpAddr],
    (owner, host_link): (&str, Option<u32>),
) -> Result<Vec<(IpAddr, Link)>, netlink::Error> {
    let mut links = Vec::new();
    for pod in pods {
        let Some(index) = host.link_towards(*pod)? else {
            note!(
                "there is no route to {pod}, so clients at 127.0.0.1 and some neighbours do not reach its ports"
            );
            continue;
        };
        let link = host.link_by_index(index)?;
        let alias = link.alias.as_deref().filter(|it| *it != owner);
        let own = host_link.filter(|_| alias.is_some_and(Attachment::is_owner));
        let own = own.map(|it| host.link_by_index(it)).transpose()?;
        links.push((*pod, own.unwrap_or(link)));
    }
    Ok(links)
}

/// Returns the host's link through which packets from 127.0.0.1 reach the container. `None` if
/// `plan` forwards no port of 127.0.0.1 with masquerading, or if `links` lacks the container's
/// address because it has no route.
pub(crate) fn link<'l>(links: &'l [(IpAddr, Link)], plan: &Plan) -> Option<&'l Link> {
    let pod = plan.localnet()?;
    let mut links = links.iter();
    links.find_map(|(address, link)| (*address == pod).then_some(link))
}

/// Returns a message if `route_localnet` of `link` is 0, and a message for each missing `IPsec`
/// policy. Requires no policies if the kernel does not support them, if cni-agent guards, or if
/// `wanted` are rules alone.
pub(crate) fn differences(link: &Link, wanted: LocalhostGuard) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    if !link.routes_localnet {
        let sysctl = Sysctl::ipv4(&link.name, "route_localnet");
        found.push(format!("sysctl {} is 0, not 1", sysctl.key()));
    }
    if wanted == LocalhostGuard::Policies {
        let accepted = guard::accepted()?.into_iter();
        found.extend(accepted.map(|it| format!("no IPsec policy blocks {it}")));
    }
    Ok(found)
}

/// Permits packets from 127.0.0.1 to leave through `link`: sets the sysctl `route_localnet` to 1.
/// Registers `owner` as a user of the sysctl, unless another program has set it.
///
/// The sysctl would also let other hosts send packets to and from 127.0.0.0/8 (CVE-2020-8558), so
/// the caller first adds the guards.
///
/// # Errors
/// The sysctl cannot be set.
pub(crate) fn enable_route_localnet(
    host: &Connection,
    link: &Link,
    owner: &str,
) -> anyhow::Result<()> {
    let (owners, is_set) = (users(link.index), link.routes_localnet);
    if !owners.join_existing(owner)? {
        if is_set && host.link_by_index(link.index)?.routes_localnet {
            // The administrator or another program set the sysctl, so portmap must not reset it
            // later.
            return Ok(());
        }
        owners.create(owner, "")?;
    } else if is_set {
        return Ok(());
    }
    Ok(host.execute(vec![set_to(link.index, 1)])?)
}

/// Removes `owner` from the users of `route_localnet` (the attachments that need this sysctl) on
/// the links that `record` names; without a record, on all links. If a link has no user left,
/// resets its sysctl to 0.
///
/// # Errors
/// The list of users cannot be changed, or the sysctl cannot be reset. The next call tries again.
pub(crate) fn release(owner: &str, record: Option<&Record>) -> anyhow::Result<()> {
    match record {
        Some(record) => release_links(owner, record.localnets()),
        None => release_links(owner, localnet_links()),
    }
}

/// Removes `owner` from the users on `links`, as [`release`] does.
///
/// # Errors
/// As [`release`].
pub(crate) fn release_links(
    owner: &str,
    links: impl IntoIterator<Item = u32>,
) -> anyhow::Result<()> {
    cni::all(links.into_iter().map(|link| {
        leave(link, owner).with_context(|| format!("reset route_localnet of link number {link}"))
    }))
}

/// Resets `route_localnet` of the links that the elements `removed` name, if the lists of its users
/// were deleted with /run/cni. Keeps it for links that a remaining element names.
pub(crate) fn reset_forgotten(removed: &[Element]) -> anyhow::Result<()> {
    let table = table::without_chains();
    let links_in = |elements: &[Element]| -> BTreeSet<String> {
        let links = elements
            .iter()
            .filter(|it| it.set == LINKS.of(IpVersion::V4));
        let keys = links.filter_map(|it| it.key_in(&table));
        let names = keys.filter_map(|key| match *key.first()? {
            Value::InterfaceName(name) => Some(name.to_owned()),
            _ => None,
        });
        names.collect()
    };
    let forgotten = links_in(removed);
    if forgotten.is_empty() || Path::new(USERS).exists() {
        return Ok(());
    }
    let used = match nft::Connection::open_if_supported()? {
        Some(connection) => links_in(&connection.elements(&table).map_err(coded)?),
        None => BTreeSet::new(),
    };
    for name in forgotten.difference(&used) {
        if let Some(link) = found(Connection::open()?.link(name))? {
            note!(
                "reset route_localnet of {name}: /run/cni/localnet names no attachment that uses it"
            );
            set_if_present(link.index, 0)?;
        }
    }
    Ok(())
}

/// Returns the indices of the links whose `route_localnet` portmap set and has not reset.
pub fn localnet_links() -> Vec<u32> {
    let entries = fs::read_dir(USERS).into_iter().flatten().flatten();
    let names = entries.filter_map(|it| it.file_name().into_string().ok());
    names.filter_map(|it| it.parse().ok()).collect()
}

/// Returns the directory of the attachments that need `route_localnet` on the link with this index.
/// The directory contains one file for each attachment, and exists only if portmap set the sysctl.
fn users(link: u32) -> OwnerFiles {
    OwnerFiles(PathBuf::from(USERS).join(link.to_string()))
}

/// Removes `owner` from the users of `route_localnet` (the attachments that need this sysctl) on
/// the link. If no user is left, the function resets the sysctl to 0, then removes the directory of
/// users.
///
/// Another attachment may add its file to the directory meanwhile. If the file exists when this
/// function removes the directory, the kernel refuses the removal, and this function sets the
/// sysctl to 1 again. If the directory no longer exists, the other attachment creates it and sets
/// the sysctl itself.
fn leave(link: u32, owner: &str) -> anyhow::Result<()> {
    let owners = users(link);
    owners.remove(owner)?;
    let OwnerFiles(directory) = owners;
    let is_last = match fs::read_dir(&directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        entries => entries?.next().transpose()?.is_none(),
    };
    if !is_last {
        return Ok(());
    }
    set_if_present(link, 0)?;
    match fs::remove_dir(&directory) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => set_if_present(link, 1),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("remove {}", directory.display())),
    }
}

/// Sets `route_localnet` of the link to `value`. A link that does not exist is no error.
fn set_if_present(link: u32, value: u32) -> anyhow::Result<()> {
    found(Connection::open()?.execute(vec![set_to(link, value)]))?;
    Ok(())
}

fn set_to(link: u32, value: u32) -> Request {
    Request::change_link_number(link, &LinkChange::RouteLocalnet(value))
}

/// The directory with one subdirectory for each link whose `route_localnet` portmap set. The files
/// of a subdirectory name the users of the sysctl: the attachments that need it. A reboot empties
/// /run, so no user outlives the links.
const USERS: &str = "/run/cni/localnet";
