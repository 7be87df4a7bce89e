//! The host's links towards a container, and whether packets from 127.0.0.1 may leave by them.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::Context as _;
use cni::note;
use ipnetwork::IpNetwork;
use netlink::{Connection, Link, LinkChange, Packets, Policies, Request};
use netns::Sysctl;

use crate::plan::Plan;
use crate::record::Record;

/// The host's links towards each of `pods`, where a route leads there.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn links(
    host: &Connection,
    pods: &[IpAddr],
) -> Result<Vec<(IpAddr, Link)>, netlink::Error> {
    let mut links = Vec::new();
    for pod in pods {
        match host.link_towards(*pod)? {
            None => note(format_args!(
                "no route leads to {pod}: its ports do not lead there either"
            )),
            Some(index) => links.push((*pod, host.link_by_index(index)?)),
        }
    }
    Ok(links)
}

/// The one of `links` through which packets from 127.0.0.1 have to leave, if any port of `plan` is for them.
pub(crate) fn link<'l>(links: &'l [(IpAddr, Link)], plan: &Plan) -> Option<&'l Link> {
    let pod = plan.localnet()?;
    let mut links = links.iter();
    links.find_map(|(address, link)| (*address == pod).then_some(link))
}

/// What keeps 127.0.0.1 from leaving by `link`, or lets others in there, in words. A record that names no link
/// is of a version that made no policies.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn differences(link: &Link, record: &Record) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    if !link.routes_localnet {
        found.push(format!("sysctl {} is 0, not 1", sysctl(&link.name).key()));
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

/// Lets packets from 127.0.0.1 leave by `link` for `owner`, and no others come in to it (CVE-2020-8558): `nf_tables`
/// has rules for that, but a flush of these must not open the host.
///
/// # Errors
/// The sysctl cannot be set, or a policy is refused.
pub(crate) fn let_out(host: &Connection, link: &Link, owner: &str) -> anyhow::Result<()> {
    match Policies::open()? {
        Some(policies) => policies.block(&localnet_packets())?,
        None => note(
            "this kernel has no IPsec policies (CONFIG_XFRM_USER): only nf_tables keeps neighbours off 127.0.0.0/8",
        ),
    }
    let (users, mut is_set) = (Users(link.index), link.routes_localnet);
    if !users.join(owner)? {
        is_set = is_set && host.link_by_index(link.index)?.routes_localnet;
        if is_set {
            // The administrator set it, or another program.
            return Ok(());
        }
        users.begin(owner)?;
    }
    if !is_set {
        let set = sysctl(&link.name).ensure("1");
        set.context("let 127.0.0.1 reach the container's ports; snat: false does without")?;
    }
    Ok(())
}

/// `owner` needs it no more, by what `record` says, or without one, on any link. The sysctl goes back to 0 with the
/// last attachment for which it was set.
///
/// # Errors
/// It cannot be reset; the next call tries again.
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

/// The attachments for which `route_localnet` of the link with this index was set by portmap: each has a file in a
/// directory, which exists as long as the sysctl is portmap's.
struct Users(u32);

impl Users {
    fn directory(&self) -> PathBuf {
        PathBuf::from(USERS).join(self.0.to_string())
    }

    fn file(&self, owner: &str) -> PathBuf {
        self.directory().join(owner.replace('/', ":"))
    }

    /// Whether there are others to join.
    fn join(&self, owner: &str) -> anyhow::Result<bool> {
        let path = self.file(owner);
        match File::create(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("create {}", path.display())),
        }
    }

    /// The first one. Another's end may take the directory away meanwhile.
    fn begin(&self, owner: &str) -> anyhow::Result<()> {
        let directory = self.directory();
        for _ in 0..ATTEMPTS {
            let made = fs::create_dir_all(&directory);
            made.with_context(|| format!("create {}", directory.display()))?;
            if self.join(owner)? {
                return Ok(());
            }
        }
        anyhow::bail!("{} is removed again and again", directory.display())
    }

    /// The sysctl is reset before the directory goes. Who joins in between finds 0 and sets it, or has it set again
    /// here.
    fn leave(&self, owner: &str) -> anyhow::Result<()> {
        let directory = self.directory();
        let file = self.file(owner);
        match fs::remove_file(&file) {
            // A read-only file system refuses to remove a missing file, too (EROFS).
            Err(_) if !file.exists() => {}
            removed => removed.with_context(|| format!("remove {}", file.display()))?,
        }
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

    /// Nothing, where the link is gone.
    fn set(&self, value: u32) -> anyhow::Result<()> {
        let host = Connection::open()?;
        let link = match host.link_by_index(self.0) {
            Err(error) if error.is_not_found() => return Ok(()),
            link => link?,
        };
        let change = Request::change_link(&link.name, &LinkChange::RouteLocalnet(value));
        Ok(host.execute(vec![change])?)
    }
}

fn sysctl(link: &str) -> Sysctl {
    Sysctl::ipv4(link, "route_localnet")
}

/// What only `lo` may deliver, to which no policy applies.
pub fn localnet_packets() -> Vec<Packets> {
    let localnet = IpNetwork::new(Ipv4Addr::new(127, 0, 0, 0).into(), 8);
    let packets = localnet.map(|it| [Packets::To(it), Packets::From(it)]);
    packets.into_iter().flatten().collect()
}

/// Gone at a reboot, like the links.
const USERS: &str = "/run/cni/localnet";

/// Each takes another attachment that ends at the same moment.
const ATTEMPTS: usize = 100;
