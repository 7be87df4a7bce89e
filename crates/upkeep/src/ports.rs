//! Finds links of the host that no longer look as ADD left them.

use std::fmt;

use attach::{host_link_name, is_host_end};
use cni::Attachment;
use netlink::Link;
use node::Node;

/// The host's end of a veth pair that has not the name that ADD gave it. What `nf_tables` knows by
/// the old name does not concern it: `macspoofchk`, `isolated` and the backstop of `bandwidth`.
/// RELOAD adds elements with the present name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed<'n> {
    /// The attachment.
    pub attachment: &'n Attachment,
    /// The link's present name.
    pub name: &'n str,
    /// The name that ADD gave the link.
    pub former: String,
}

impl<'n> Renamed<'n> {
    /// Returns the renamed host ends of live attachments that a runtime's cache has.
    pub fn all(node: &'n Node) -> Vec<Self> {
        let of = |attachment: &'n Attachment| {
            let former = host_link_name(attachment);
            let is_renamed = |it: &&Link| it.name != former && is_host_end(it, attachment);
            let link = node.links.iter().find(is_renamed)?;
            Some(Self {
                attachment,
                name: &link.name,
                former,
            })
        };
        let living = node.alive().map(|it| &it.attachment);
        living.filter_map(of).collect()
    }
}

impl fmt::Display for Renamed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.attachment.owner();
        write!(f, "{} is {} of {owner}, renamed", self.name, self.former)
    }
}
