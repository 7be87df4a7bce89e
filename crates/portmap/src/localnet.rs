//! Manages `route_localnet` on the host's links towards containers: whether packets from 127.0.0.1
//! may leave by them.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::Context as _;
use cni::note;
use ipnetwork::IpNetwork;
use netlink::{Connection, Link, LinkChange, Packets, Policies, Request};
use netns::Sysctl;

use crate::owners::Owners;
use crate::plan::Plan;
use crate::record::Record;

/// Returns the host's link towards each of `pods`. A pod without a route is logged and left out.
///
/// # Errors
/// Refusals of the kernel.
pub(crate) fn links(
    host: &Connection,
    pods: &[IpAddr],
) -> Result<Vec<(IpAddr, Link)>, netlink::Error> {
    let mut links = Vec::new();
    for pod in pods {
        match host.link_towards(*pod)? {
            None => note(format_args!(
                "there is no route to {pod}: its ports are not forwarded"
            )),
            Some(index) => links.push((*pod, host.link_by_index(index)?)),
        }
    }
    Ok(links)
}

/// Returns the link that packets from 127.0.0.1 have to leave by, if a port of `plan` is for them.
pub(crate) fn link<'l>(links: &'l [(IpAddr, Link)], plan: &Plan) -> Option<&'l Link> {
    let pod = plan.localnet()?;
    let mut links = links.iter();
    links.find_map(|(address, link)| (*address == pod).then_some(link))
}

/// Returns messages for a `route_localnet` that is not set, and for packets that no `IPsec` policy
/// drops. A record without a link is of a version that installed no policies.
///
/// # Errors
/// Refusals of the kernel.
pub(crate) fn differences(link: &Link, record: &Record) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    if !link.routes_localnet {
        let sysctl = Sysctl::ipv4(&link.name, "route_localnet");
        found.push(format!("sysctl {} is 0, not 1", sysctl.key()));
    }
    if record.localnet.is_none() {
        return Ok(found);
    }
    if let Some(policies) = Policies::open()? {
        let accepted = policies.accepted(&localnet_packets())?.into_iter();
        found.extend(accepted.map(|it| format!("no IPsec policy blocks {it}")));
    }
    Ok(found)
}

/// Permits packets from 127.0.0.1 to leave by `link` for `owner`. `IPsec` policies drop packets of
/// other hosts with such addresses (CVE-2020-8558), in addition to the rules in `nf_tables`, so a
/// flush of these does not expose the host.
///
/// # Errors
/// The sysctl cannot be set, or the kernel refuses a policy.
pub(crate) fn let_out(host: &Connection, link: &Link, owner: &str) -> anyhow::Result<()> {
    match Policies::open()? {
        Some(policies) => policies.block(&localnet_packets())?,
        None => note(
            "this kernel has no IPsec policies (CONFIG_XFRM_USER): only nf_tables keeps neighbours off 127.0.0.0/8",
        ),
    }
    let (users, is_set) = (Users(link.index), link.routes_localnet);
    let owners = users.owners();
    if !owners.join_existing(owner)? {
        if is_set && host.link_by_index(link.index)?.routes_localnet {
            // The administrator or another program set it.
            return Ok(());
        }
        owners.join(owner)?;
    } else if is_set {
        return Ok(());
    }
    Ok(host.execute(vec![users.request(1)])?)
}

/// Removes `owner` from the users of its record's link, or without a record, of all links. The
/// sysctl returns to 0 with the last attachment that it was set for.
///
/// # Errors
/// The sysctl cannot be reset; the next call tries again.
pub(crate) fn release(owner: &str, record: Option<&Record>) -> anyhow::Result<()> {
    let links = match record {
        Some(record) => record.localnet.into_iter().collect(),
        None => localnet_links(),
    };
    cni::all(links.into_iter().map(|link| {
        let left = Users(link).leave(owner);
        left.with_context(|| format!("reset route_localnet of link number {link}"))
    }))
}

/// Indexes of the links for which portmap set `route_localnet`.
pub fn localnet_links() -> Vec<u32> {
    let entries = fs::read_dir(USERS).into_iter().flatten().flatten();
    let names = entries.filter_map(|it| it.file_name().into_string().ok());
    names.filter_map(|it| it.parse().ok()).collect()
}

/// The attachments that portmap set `route_localnet` of the link with this index for. Each has a
/// file in a directory, which exists as long as the sysctl is portmap's.
struct Users(u32);

impl Users {
    fn owners(&self) -> Owners {
        Owners(PathBuf::from(USERS).join(self.0.to_string()))
    }

    /// Removes a user; the last one resets the sysctl, then removes the directory. A user that
    /// joins in between either reads 0 and sets the sysctl itself, or this function sets it again.
    fn leave(&self, owner: &str) -> anyhow::Result<()> {
        let owners = self.owners();
        owners.remove(owner)?;
        let Owners(directory) = owners;
        let is_last = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            entries => entries?.next().transpose()?.is_none(),
        };
        if !is_last {
            return Ok(());
        }
        self.set(0)?;
        match fs::remove_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => self.set(1),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.with_context(|| format!("remove {}", directory.display())),
        }
    }

    /// Sets the sysctl. A link that no longer exists is no error.
    fn set(&self, value: u32) -> anyhow::Result<()> {
        match Connection::open()?.execute(vec![self.request(value)]) {
            Err(error) if error.is_not_found() => Ok(()),
            set => Ok(set?),
        }
    }

    fn request(&self, value: u32) -> Request {
        Request::change_link_number(self.0, &LinkChange::RouteLocalnet(value))
    }
}

/// Returns the packets that only `lo` may deliver; policies do not apply to `lo`.
pub fn localnet_packets() -> Vec<Packets> {
    let localnet = IpNetwork::new(Ipv4Addr::new(127, 0, 0, 0).into(), 8);
    let packets = localnet.map(|it| [Packets::To(it), Packets::From(it)]);
    packets.into_iter().flatten().collect()
}

/// The directory of all users. Like the links, it does not survive a reboot.
const USERS: &str = "/run/cni/localnet";
