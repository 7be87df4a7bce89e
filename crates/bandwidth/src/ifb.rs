//! The ifb device by which the Go plugin limits what a sandbox sends. This plugin makes none.

use cni::{Attachment, DelRequest, hex, note};
use netlink::{Connection, Link, LinkKind};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use sha2::{Digest as _, Sha512};

use crate::pair::{self, Pair};

/// Returns the ifb to which filters of the pair's host end redirect packets; `None` if there is none.
///
/// # Errors
/// The kernel refuses a request.
pub(crate) fn behind(pair: &Pair, attachment: &Attachment) -> anyhow::Result<Option<Link>> {
    let Some(ifb) = find(&pair.host, attachment)? else {
        return Ok(None);
    };
    let is_behind = tc::redirects(&pair.host, &pair.host_link, &ifb)?;
    Ok(is_behind.then_some(ifb))
}

/// Deletes the ifb of the attachment's container, unless a link of another attachment, such as
/// another interface of the container, redirects packets to it.
///
/// # Errors
/// The kernel refuses a request.
pub(crate) fn delete(request: &DelRequest) -> anyhow::Result<()> {
    // Few attachments have an ifb. This look takes a tenth of the time of a netlink socket.
    if if_nametoindex(name(&request.attachment).as_str()) == Err(Errno::ENODEV) {
        return Ok(());
    }
    let host = &Connection::open()?;
    let Some(ifb) = find(host, &request.attachment)? else {
        return Ok(());
    };
    for link in host.links()? {
        if tc::redirects(host, &link, &ifb)?
            && !pair::host_links(request, host)?.contains(&link.name)
        {
            note!(
                "ifb {} is not deleted: {} sends to it, and is not known to be the link of {}",
                ifb.name,
                link.name,
                request.attachment
            );
            return Ok(());
        }
    }
    Ok(host.remove_link(&ifb)?)
}

/// Returns the ifb with the name that the Go plugin gives to it. The name does not depend on the
/// interface, so the ifb may belong to another interface of the container.
fn find(host: &Connection, attachment: &Attachment) -> anyhow::Result<Option<Link>> {
    let found = host.find_link(&name(attachment))?;
    Ok(found.filter(|it| it.kind == LinkKind::Ifb))
}

fn name(attachment: &Attachment) -> String {
    let parts = [attachment.network.as_str(), attachment.container.as_str()];
    format!("bwp{}", hex(&Sha512::digest(parts.concat()), 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_the_references() {
        let attachment = Attachment {
            network: "pods".parse().unwrap(),
            container: "c1".parse().unwrap(),
            interface: "eth0".parse().unwrap(),
        };
        assert_eq!(name(&attachment), "bwp48c5963fc74e");
    }
}
