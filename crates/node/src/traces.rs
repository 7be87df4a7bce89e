//! What the node has of each attachment, by its tag.

use std::collections::BTreeMap;

use cni::Attachment;
use netlink::Link;

use super::{Attached, Held, Lease, Node};

/// All traces of one attachment.
#[derive(Debug, Default)]
pub struct Traces<'n> {
    /// The entry in a runtime's cache.
    pub cached: Option<&'n Attached>,
    /// Links with its tag.
    pub links: Vec<&'n Link>,
    /// Elements of `nf_tables` with its tag.
    pub elements: Vec<&'n Held>,
    /// Addresses that are leased to it.
    pub leases: Vec<&'n Lease>,
}

impl Node {
    /// Returns the traces of all attachments, by tag. Elements without tag have the empty one.
    pub fn traces(&self) -> BTreeMap<String, Traces<'_>> {
        let mut all = BTreeMap::<_, Traces<'_>>::new();
        for attached in &self.attached {
            let owner = attached.attachment.owner();
            all.entry(owner).or_default().cached = Some(attached);
        }
        for link in &self.links {
            if let Some(owner) = link.alias.clone().filter(|it| Attachment::is_owner(it)) {
                all.entry(owner).or_default().links.push(link);
            }
        }
        for element in &self.firewall.elements {
            let traces = all.entry(element.owner.clone()).or_default();
            traces.elements.push(element);
        }
        for lease in &self.leases {
            let traces = all.entry(self.holder(lease)).or_default();
            traces.leases.push(lease);
        }
        all
    }

    /// Returns the tag of the lease's holder. A lease without interface gets the cached attachment's tag, or one
    /// without interface; a lease without holder gets the path of its file.
    fn holder(&self, lease: &Lease) -> String {
        let of_cached = || {
            let mut attachments = self.attached.iter().map(|it| &it.attachment);
            let cached = attachments.find(|it| lease.is_of(it));
            cached.map(Attachment::owner)
        };
        let container = || match &lease.holder {
            Some(it) => format!("cni:{}/{}/", lease.network, it.container),
            None => lease.path.display().to_string(),
        };
        lease.owner().or_else(of_cached).unwrap_or_else(container)
    }
}
