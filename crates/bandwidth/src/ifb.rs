//! The intermediate functional block on which a sandbox's packets wait.

use cni::{Attachment, NetworkName};
use netlink::{Connection, Ifb, Link, LinkChange, LinkKind, MacAddress, Request};
use sha2::{Digest as _, Sha512};
use tc::Module;

/// Those that belong to the attachment, ours by their alias, the reference's by its name.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn find(host: &Connection, attachment: &Attachment) -> anyhow::Result<Vec<Link>> {
    let owner = attachment.owner();
    let mut found = Vec::new();
    for name in names(attachment) {
        let link = host.find_link(&name)?;
        found.extend(link.filter(|it| it.kind == LinkKind::Ifb));
    }
    let is_ours = |link: &&Link| link.alias.as_ref() == Some(&owner);
    if found.iter().any(|link| is_ours(&link)) {
        found.retain(|link| is_ours(&link));
    } else {
        found.retain(|link| link.alias.is_none());
    }
    Ok(found)
}

/// That of an ADD in `network` that was killed after the message that makes a block and before the
/// one that says whose it is. The reference's has a MAC that the kernel chose.
pub(crate) fn is_nameless(link: &Link, network: &NetworkName) -> bool {
    let [a, b] = network.mark();
    let is_ours = |mac: MacAddress| mac.0.starts_with(&[MAC, a, b]);
    link.alias.is_none() && link.mac.is_some_and(is_ours)
}

/// Finds the attachment's, or makes it. It comes up once it has its limit.
///
/// # Errors
/// Both names belong to others; the kernel has no such links.
pub(crate) fn ensure(host: &Connection, attachment: &Attachment, mtu: u32) -> anyhow::Result<Link> {
    let owner = attachment.owner();
    if let Some(link) = find(host, attachment)?.pop() {
        return adopt(host, link, &owner, mtu);
    }
    let mut taken = None;
    for name in names(attachment) {
        let ifb = Ifb {
            name: &name,
            mac: mac(attachment),
            mtu,
        };
        match host.add_ifb(&ifb) {
            Ok(()) => return Ok(host.change_link(&name, &[LinkChange::Alias(&owner)])?),
            // By another interface of the container, or of one whose names are the same in a row.
            Err(error) if error.is_already_exists() => taken = Some(error),
            Err(error) => return Err(tc::Error::of(Module::Ifb, error).into()),
        }
    }
    Err(taken.map_or_else(|| anyhow::anyhow!("no name for an ifb"), Into::into))
}

/// Brings it up.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn bring_up(host: &Connection, link: &Link) -> anyhow::Result<()> {
    if !link.is_up {
        host.execute(vec![Request::change_link(&link.name, &LinkChange::Up)])?;
    }
    Ok(())
}

/// Deletes it, and returns when it is gone for everybody; one that is gone is deleted.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn delete(host: &Connection, link: &Link) -> anyhow::Result<()> {
    match host.remove_link(link, None) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

/// What an ADD that was cut short, or one of the reference, left.
fn adopt(host: &Connection, link: Link, owner: &str, mtu: u32) -> anyhow::Result<Link> {
    let alias = (link.alias.as_deref() != Some(owner)).then_some(LinkChange::Alias(owner));
    let mtu = (link.mtu != mtu).then_some(LinkChange::Mtu(mtu));
    let changes: Vec<_> = alias.into_iter().chain(mtu).collect();
    if changes.is_empty() {
        return Ok(link);
    }
    Ok(host.change_link(&link.name, &changes)?)
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
