//! Groups cache entries, links, `nf_tables` elements and leases by the tag of their attachment.

use std::collections::BTreeMap;

use cni::Attachment;
use netlink::Link;

use super::{Attached, Lease, Node, OwnedElement, Witnessed};

/// Returns the alias of a link if it is the tag of an attachment. Links of Go plugins have no tag,
/// and an operator may give any link another alias.
pub fn owner_of(link: &Link) -> Option<&str> {
    link.alias.as_deref().filter(|it| Attachment::is_owner(it))
}

/// What the node has of one attachment: cache entry, links, elements and leases.
#[derive(Debug, Default)]
pub struct Traces<'n> {
    /// The entry in a runtime's cache.
    pub cached: Option<&'n Attached>,
    /// Links that are tagged with the attachment. Also its host end without the tag, if a runtime's
    /// cache has the attachment.
    pub links: Vec<&'n Link>,
    /// Elements of `nf_tables` that are tagged with the attachment.
    pub elements: Vec<&'n OwnedElement>,
    /// Addresses that are leased to the attachment.
    pub leases: Vec<&'n Lease>,
    /// Its link, if that lives in the sandbox alone.
    pub witness: Option<&'n Witnessed>,
}

impl Traces<'_> {
    /// Returns network, container and interface of the attachment with the tag `owner`, each empty
    /// if unknown. The names in a runtime's cache take precedence, because a tag has hashes in
    /// place of long names.
    pub fn names<'a>(&'a self, owner: &'a str) -> [&'a str; 3] {
        if let Some(Attached { attachment, .. }) = self.cached {
            return [
                attachment.network.as_str(),
                attachment.container.as_str(),
                attachment.interface.as_str(),
            ];
        }
        let names = owner.strip_prefix("cni:").unwrap_or_default();
        let mut names = names.splitn(3, '/');
        [(); 3].map(|()| names.next().unwrap_or_default())
    }
}

impl Node {
    /// Returns cache entries, links, elements, leases and records of all attachments, grouped by the
    /// attachment's tag. The key of elements without a tag is the empty string. The key of a lease
    /// without a holder is the path of its file.
    pub fn traces(&self) -> BTreeMap<String, Traces<'_>> {
        let mut all = BTreeMap::<_, Traces<'_>>::new();
        for attached in &self.attached {
            let owner = attached.attachment.owner();
            all.entry(owner).or_default().cached = Some(attached);
        }
        for link in &self.links {
            let is_end = |it: &&Attached| attach::is_host_end(link, &it.attachment);
            let of_cached = || Some(self.attached.iter().find(is_end)?.attachment.owner());
            if let Some(owner) = owner_of(link).map(str::to_owned).or_else(of_cached) {
                all.entry(owner).or_default().links.push(link);
            }
        }
        for element in &self.firewall.elements {
            let traces = all.entry(element.owner.clone()).or_default();
            traces.elements.push(element);
        }
        for (owner, witness) in &self.witnesses {
            all.entry(owner.clone()).or_default().witness = Some(witness);
        }
        for lease in &self.leases {
            let traces = all.entry(self.holder(lease)).or_default();
            traces.leases.push(lease);
        }
        all
    }

    /// Returns the key of a lease in [`Node::traces`]. This is the tag of the attachment that holds
    /// the lease, with two exceptions:
    ///
    /// - The lease names no interface. The key is then the tag of a cached attachment of the same
    ///   container to the same network. If the cache has none, the key is a tag without interface.
    /// - The lease has no holder. The key is then the path of its file.
    fn holder(&self, lease: &Lease) -> String {
        let Some(holder) = &lease.holder else {
            return lease.path.display().to_string();
        };
        let (network, container) = (&lease.network, &holder.container);
        let named = lease.attachment().filter(|_| holder.interface.is_some());
        let is_same =
            |it: &&Attachment| it.network.as_str() == network && it.container == *container;
        let mut cached = self.attached.iter().map(|it| &it.attachment);
        let attachment = named.as_ref().or_else(|| cached.find(is_same));
        attachment.map_or_else(|| format!("cni:{network}/{container}/"), Attachment::owner)
    }
}
