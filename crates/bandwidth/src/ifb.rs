//! The intermediate functional block on which a sandbox's packets wait.

use cni::{Attachment, Error, NetworkName};
use netlink::{Connection, Ifb, Link, LinkChange, LinkKind, MacAddress, Removal, Request};
use sha2::{Digest as _, Sha512};
use tc::{Arriving, Leaving, Limit, Module, Traffic};

/// The blocks that bear a name which the attachment's could have.
pub(crate) struct Found {
    /// The attachment's, by the alias or, after an ADD that was killed before it could set that, by
    /// the MAC.
    pub own: Vec<Link>,
    /// Without a word on whose they are: of the reference, which names them after the container, whichever
    /// of its interfaces they are for.
    pub unclaimed: Vec<Link>,
}

/// Finds them.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn find(host: &Connection, attachment: &Attachment) -> anyhow::Result<Found> {
    let (owner, mac) = (attachment.owner(), mac(attachment));
    let names = names(attachment);
    let mut links = host.links_named(names.iter().map(String::as_str))?;
    links.retain(|it| it.kind == LinkKind::Ifb);
    let is_own = |it: &Link| match &it.alias {
        Some(alias) => *alias == owner,
        None => it.mac == Some(mac),
    };
    let (own, mut unclaimed): (Vec<_>, Vec<_>) = links.into_iter().partition(is_own);
    unclaimed.retain(|it| it.alias.is_none());
    Ok(Found { own, unclaimed })
}

/// That on which the packets of `host_link` wait: the attachment's own, or one of the reference.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn find_behind(
    host_link: &Link,
    host: &Connection,
    attachment: &Attachment,
) -> anyhow::Result<Option<Link>> {
    let mut found = find(host, attachment)?;
    if let Some(own) = found.own.pop() {
        return Ok(Some(own));
    }
    let arriving = Arriving {
        connection: host,
        link: host_link,
    };
    for link in found.unclaimed {
        if arriving.leads_to(&link)? {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// That of an ADD in `network` that was killed after the message that makes a block and before the
/// one that says whose it is. The reference's has a MAC that the kernel chose.
pub(crate) fn is_nameless(link: &Link, network: &NetworkName) -> bool {
    let [a, b] = network.mark();
    let is_ours = |mac: MacAddress| mac.0.starts_with(&[MAC, a, b]);
    link.alias.is_none() && link.mac.is_some_and(is_ours)
}

/// Makes the attachment's for a link with an MTU of `mtu` bytes, down. Calls `on_made` as soon as it
/// may be there.
///
/// # Errors
/// Code 11: another ADD of the attachment has made it meanwhile. Both names belong to others; the
/// kernel has no such links.
pub(crate) fn make(
    host: &Connection,
    attachment: &Attachment,
    mtu: u32,
    on_made: impl FnOnce(),
) -> anyhow::Result<Link> {
    let mut taken = None;
    for name in names(attachment) {
        let ifb = Ifb {
            name: &name,
            mac: mac(attachment),
            mtu,
        };
        match host.add_ifb(&ifb) {
            // By another interface of the container, or of one whose names are the same in a row.
            Err(error) if error.is_already_exists() => taken = Some(error),
            made => {
                on_made();
                return Ok(made.map_err(|error| tc::Error::of(Module::Ifb, error))?);
            }
        }
        if !find(host, attachment)?.own.is_empty() {
            let reason = format!("another ADD limits {attachment} at the moment");
            return Err(Error::TryAgain { reason }.into());
        }
    }
    Err(taken.map_or_else(|| anyhow::anyhow!("no name for an ifb"), Into::into))
}

/// Limits what was just made, tags it with its owner and brings it up.
///
/// # Errors
/// The kernel has no such limits.
pub(crate) fn set_up(
    host: &Connection,
    link: &Link,
    attachment: &Attachment,
    limit: &Limit,
) -> anyhow::Result<()> {
    let requests = vec![
        Leaving::first(link, limit),
        Request::change_link(&link.name, &LinkChange::Alias(&attachment.owner())),
        Request::change_link(&link.name, &LinkChange::Up),
    ];
    let done = host.execute(requests);
    Ok(done.map_err(|error| tc::Error::of(Module::Tbf, error))?)
}

/// Makes the attachment's what an ADD that was cut short, or one of the reference, left: with its limit, up.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn adopt(
    host: &Connection,
    link: Link,
    (attachment, mtu): (&Attachment, u32),
    limit: &Limit,
) -> anyhow::Result<Link> {
    let owner = attachment.owner();
    let alias = (link.alias.as_ref() != Some(&owner)).then_some(LinkChange::Alias(&owner));
    let mtu = (link.mtu != mtu).then_some(LinkChange::Mtu(mtu));
    let changes: Vec<_> = alias.into_iter().chain(mtu).collect();
    let link = if changes.is_empty() {
        link
    } else {
        host.change_link(&link.name, &changes)?
    };
    let leaving = Leaving {
        connection: host,
        link: &link,
    };
    leaving.ensure(limit, &Traffic::All)?;
    if !link.is_up {
        host.execute(vec![Request::change_link(&link.name, &LinkChange::Up)])?;
    }
    Ok(link)
}

/// Deletes it, and returns when it is gone for everybody; one that is gone is deleted.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn delete(host: &Connection, link: &Link) -> anyhow::Result<Option<Removal>> {
    match host.remove_link(link) {
        Err(error) if error.is_not_found() => Ok(None),
        removed => Ok(Some(removed?)),
    }
}

/// The name that the reference would choose, and one for where that is another interface's of
/// the same container, since the reference's says nothing of the interface.
pub(crate) fn names(attachment: &Attachment) -> [String; 2] {
    let (network, container) = (attachment.network.as_str(), attachment.container.as_str());
    let interface = attachment.interface.as_str();
    [
        name(&[network, container]),
        name(&[network, container, interface]),
    ]
}

fn name(parts: &[&str]) -> String {
    let digest = Sha512::digest(parts.concat());
    let digits = digest.iter().take(6).map(|byte| format!("{byte:02x}"));
    let digits: String = digits.collect();
    format!("bwp{digits}")
}

/// Locally administered, and no end of a pair's. It says which network's it is before the alias
/// can.
fn mac(attachment: &Attachment) -> MacAddress {
    let mut bytes = [MAC; 6];
    for (byte, digest) in bytes.iter_mut().skip(1).zip(attachment.marked_digest()) {
        *byte = digest;
    }
    MacAddress(bytes)
}

const MAC: u8 = 0x0a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_name_is_the_references() {
        let attachment = Attachment {
            network: "pods".parse().unwrap(),
            container: "c1".parse().unwrap(),
            interface: "eth0".parse().unwrap(),
        };
        let [first, second] = names(&attachment);
        assert_eq!(first, "bwp48c5963fc74e");
        assert!(second.len() == 15 && second != first);
    }
}
