//! Finds attachments whose links exist, but that nothing seems to use.
//!
//! CRI-O keeps the network namespace of a pod whose ADD was interrupted, and forgets the pod. The
//! namespace keeps the veth pair, so the pair does not prove that the pod exists.

use attach::is_host_end;
use cni::Attachment;
use netlink::Link;
use node::{Node, owner_of};

use crate::liveness::Candidate;

/// An attachment that has a link on the host, but neither a cached result of its container nor, as
/// far as this process sees, a process in its network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// The attachment.
    pub attachment: Attachment,
    /// The name of a host end of its container.
    pub link: String,
    /// The indexes of all host ends of its container in this network.
    pub links: Vec<u32>,
    /// Whether no process runs in its network namespace; `false` if unknown.
    pub is_idle: bool,
}

impl Leftover {
    /// Returns the leftovers of the node. The caller has to find out whether a runtime lists their
    /// containers.
    pub fn all(node: &Node) -> Vec<Self> {
        let traces = node.traces().into_iter();
        let candidates = traces.filter_map(|(owner, traces)| Candidate::of_traces(&owner, &traces));
        candidates.filter_map(|it| Self::of(node, &it)).collect()
    }

    /// Returns the attachment of `candidate` if it is a leftover. Returns `None` also if its ADD
    /// may still be running, if a runtime's cache has an invalid entry, which may be its result, or
    /// if it has a link that DEL would not recognise.
    pub(crate) fn of(node: &Node, candidate: &Candidate<'_>) -> Option<Self> {
        let attachment = &candidate.attachment;
        let is_own = |it: &Attachment| it.container == attachment.container;
        let is_cached = node.attached.iter().any(|it| is_own(&it.attachment));
        if is_cached || node.invalid_entries > 0 || candidate.is_young() {
            return None;
        }
        let ends = candidate.links_in(&node.host_links);
        let links: Vec<_> = ends.map(|it| &it.link).collect();
        let is_known = |it: &Link| owner_of(it).is_some() || is_host_end(it, attachment);
        let is_idle = |it: &Link| match (&node.occupied, it.peer_namespace) {
            (Some(occupied), Some(number)) => !occupied.contains(&number),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        let first = links.first()?.name.clone();
        let may_go = links.iter().all(|it| is_known(it) && is_idle(it));
        may_go.then(|| Self {
            attachment: attachment.clone(),
            link: first,
            links: links.iter().map(|it| it.index).collect(),
            is_idle: node.occupied.is_some(),
        })
    }
}
