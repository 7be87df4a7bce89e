//! The host's links towards a container, and whether packets from 127.0.0.1 may leave by them.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Context as _;
use cni::note;
use netlink::{Connection, Link};
use netns::Sysctl;

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

/// The sysctl that has to let packets from 127.0.0.1 leave by the link towards `pod`, and does not yet.
/// DEL leaves it as it is: the link may be that of others, too.
pub(crate) fn sysctl(links: &[(IpAddr, Link)], pod: Ipv4Addr) -> Option<Sysctl> {
    let mut links = links.iter();
    let (_, link) = links.find(|(address, link)| *address == pod && !link.routes_localnet)?;
    Some(Sysctl::ipv4(&link.name, "route_localnet"))
}

/// Sets it.
///
/// # Errors
/// It cannot be set.
pub(crate) fn let_out(sysctl: &Sysctl) -> anyhow::Result<()> {
    sysctl
        .ensure("1")
        .context("let 127.0.0.1 reach the container's ports; snat: false does without")?;
    Ok(())
}
