//! The ifb device that queues the packets that a sandbox sends.

use cni::{AddResult, Attachment, Error, hex};
use netlink::{Connection, Link, LinkChange, LinkKind, MacAddress, Request};
use sha2::{Digest as _, Sha512};
use tc::{Limit, LinkEgress, LinkIngress, module};

/// Ifbs that have one of the two possible names ([`names`]) of the attachment's ifb.
pub(crate) struct Found {
    /// Ifbs of the attachment: their alias is its tag ([`Attachment::owner`]). If an ADD was killed
    /// before it set the alias, the MAC identifies the ifb.
    pub own: Vec<Link>,
    /// Ifbs without an alias and without this attachment's MAC. The Go plugin creates such ifbs.
    /// It derives their names from the network and the container but not from the interface, so
    /// they may belong to another interface of the container.
    pub unclaimed: Vec<Link>,
}

/// The ifbs of an attachment, of which it has at most one.
#[derive(Clone, Copy)]
pub(crate) struct Ifbs<'a> {
    pub host: &'a Connection,
    pub attachment: &'a Attachment,
}

impl Ifbs<'_> {
    /// Returns the ifbs with one of the two possible names ([`names`]) of the attachment's ifb, except
    /// those whose alias is the tag ([`Attachment::owner`]) of another attachment.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn find(self) -> anyhow::Result<Found> {
        let (owner, mac) = (self.attachment.owner(), mac(self.attachment));
        let names = names(self.attachment);
        let mut links = self.host.links_named(names.iter().map(String::as_str))?;
        links.retain(|it| it.kind == LinkKind::Ifb);
        let is_own = |it: &Link| match &it.alias {
            Some(alias) => *alias == owner,
            None => it.mac == Some(mac),
        };
        let (own, mut unclaimed): (Vec<_>, Vec<_>) = links.into_iter().partition(is_own);
        unclaimed.retain(|it| it.alias.is_none());
        Ok(Found { own, unclaimed })
    }

    /// Returns the attachment's ifb. If it has none, returns an ifb of the Go plugin to which filters
    /// of `host_link` redirect packets. Returns `None` if there is neither.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn find_behind(self, host_link: &Link) -> anyhow::Result<Option<Link>> {
        let mut found = self.find()?;
        if let Some(own) = found.own.pop() {
            return Ok(Some(own));
        }
        let link_ingress = LinkIngress::new(self.host, host_link);
        for link in found.unclaimed {
            if link_ingress.redirects_to(&link)? {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }

    /// Creates the attachment's ifb with an MTU of `mtu` bytes and returns it. The ifb is down at
    /// first. Calls `on_made` as soon as the ifb may exist, even if an error follows.
    ///
    /// # Errors
    /// - Code 11: a concurrent ADD of the attachment created the ifb.
    /// - Code 100: other links have the two possible names of the ifb, or the kernel lacks the module
    ///   `ifb`.
    pub fn make(self, mtu: u32, on_made: impl FnOnce()) -> anyhow::Result<Link> {
        let Self { host, attachment } = self;
        let mut taken = None;
        for name in names(attachment) {
            match host.add_ifb(&name, mac(attachment), mtu) {
                // Another link has this name: the ifb of the same attachment, the ifb of another
                // interface of the container, or a link whose name is the same by chance.
                Err(error) if error.is_already_exists() => taken = Some(error),
                made => {
                    on_made();
                    return Ok(made.map_err(|error| tc::Error::of(module::IFB, error))?);
                }
            }
            if !self.find()?.own.is_empty() {
                let reason = format!("another ADD limits {attachment} at the moment");
                return Err(Error::TryAgain(reason).into());
            }
        }
        Err(taken.map_or_else(|| anyhow::anyhow!("no name for an ifb"), Into::into))
    }

    /// Limits a new ifb, sets its alias to the attachment's tag ([`Attachment::owner`]) and brings it
    /// up.
    ///
    /// # Errors
    /// The kernel lacks the TBF qdisc or refuses a request.
    pub fn set_up(self, link: &Link, limit: &Limit) -> anyhow::Result<()> {
        let more = vec![
            Request::change_link(&link.name, &LinkChange::Alias(&self.attachment.owner())),
            Request::change_link(&link.name, &LinkChange::Up),
        ];
        Ok(LinkEgress::new(self.host, link).ensure_first(limit, more)?)
    }

    /// Takes over an existing ifb, which may come from an interrupted ADD or the Go plugin. Sets its
    /// alias to the attachment's tag ([`Attachment::owner`]) and its MTU to `mtu`. Returns the ifb's
    /// new state.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn adopt(self, link: Link, mtu: u32) -> anyhow::Result<Link> {
        let owner = self.attachment.owner();
        let alias = (link.alias.as_ref() != Some(&owner)).then_some(LinkChange::Alias(&owner));
        let mtu = (link.mtu != mtu).then_some(LinkChange::Mtu(mtu));
        let changes: Vec<_> = alias.into_iter().chain(mtu).collect();
        if changes.is_empty() {
            return Ok(link);
        }
        Ok(self.host.change_link(&link.name, &changes)?)
    }

    /// Brings up the ifb if it is down.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn bring_up(self, link: &Link) -> Result<(), netlink::Error> {
        if link.is_up {
            return Ok(());
        }
        self.host
            .execute([Request::change_link(&link.name, &LinkChange::Up)])
    }

    /// Deletes the attachment's own ifbs.
    ///
    /// # Errors
    /// All refusals of the kernel.
    pub fn delete_own(self) -> anyhow::Result<()> {
        delete_all(self.host, &self.find()?.own)
    }
}

/// Deletes `ifbs`. If one cannot be deleted, deletes the others and returns all errors together.
pub(crate) fn delete_all(host: &Connection, ifbs: &[Link]) -> anyhow::Result<()> {
    cni::all(ifbs.iter().map(|link| Ok(host.remove_link(link)?)))
}

/// Returns whether the ifb has the MAC that this plugin gives to a new ifb of the attachment. An
/// ifb of the Go plugin has another MAC.
pub(crate) fn is_made(link: &Link, attachment: &Attachment) -> bool {
    link.mac == Some(mac(attachment))
}

/// Checks that `result`, the `prevResult`, does not list the attachment's ifb. If it does, an
/// earlier plugin of the chain has limited what the sandbox sends, and this ADD would replace that
/// limit.
///
/// # Errors
/// Code 7: `result` lists the ifb.
pub(crate) fn expect_unlisted(result: &AddResult, attachment: &Attachment) -> Result<(), Error> {
    let names = names(attachment);
    let mut listed = result.interfaces.iter();
    match listed.find(|it| it.sandbox.is_none() && names.contains(&it.name)) {
        None => Ok(()),
        Some(ifb) => Err(Error::invalid(
            "prevResult",
            format!(
                "it has the ifb {} of {attachment}, so an earlier plugin of the chain limits egress already; keep \
                 one bandwidth plugin in the chain",
                ifb.name
            ),
        )),
    }
}

/// Returns the two possible names of the attachment's ifb. The first is the name that the Go plugin
/// would choose. This name does not depend on the interface, so the ifb of another interface of the
/// container may already have it. This attachment's ifb then gets the second name.
pub fn names(attachment: &Attachment) -> [String; 2] {
    let (network, container) = (attachment.network.as_str(), attachment.container.as_str());
    let interface = attachment.interface.as_str();
    [
        name(&[network, container]),
        name(&[network, container, interface]),
    ]
}

fn name(parts: &[&str]) -> String {
    format!("bwp{}", hex(&Sha512::digest(parts.concat()), 12))
}

/// Returns a locally administered MAC that identifies the attachment and its network until the
/// alias is set.
fn mac(attachment: &Attachment) -> MacAddress {
    attach::marked_mac(MAC, attachment)
}

/// The first byte of the MAC of this plugin's ifbs. If an ADD was killed before it set the alias,
/// GC recognises the ifb by this byte and the next two bytes, which identify the network. GC keeps
/// the ifbs of the Go plugin: they have a random MAC, which the kernel chose.
pub(crate) const MAC: u8 = 0x0a;

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
