//! Checks whether the attachment of a lease is gone. Unknown is never gone.
//!
//! The record of a lease has three facts of its ADD: the identifiers of the boot, the sandbox, and
//! the plugin that called this one. The host's links are the fourth fact: as long as the host's end
//! of its veth pair exists, an attachment is live.

use std::cell::OnceCell;
use std::path::Path;

use anyhow::Context as _;
use cni::{Attachment, NetworkName, Role, or_note, role};
use netlink::{Connection, Link, LinkKind};

use crate::index::Record;
use crate::sandbox::Presence;
use crate::{Boot, Holder};

/// The facts from which [`Self::is_gone`] concludes.
#[derive(Debug)]
pub(crate) struct StaleLeaseCheck<'a> {
    pub network: &'a NetworkName,
    pub now: Boot,
    /// The sandbox of the request; `None` for STATUS, which has none.
    pub own: Option<&'a Path>,
    /// The links of the host; `None` inside if they cannot be read.
    pub links: OnceCell<Option<Vec<Link>>>,
}

impl<'a> StaleLeaseCheck<'a> {
    pub fn new(network: &'a NetworkName, now: Boot, own: Option<&'a Path>) -> Self {
        Self {
            network,
            now,
            own,
            links: OnceCell::new(),
        }
    }

    /// Returns whether `holder` got the lease in an earlier boot. A differing identifier is not
    /// enough: the sandbox must be gone, too. If both identifiers differ, it is enough that the
    /// sandbox is not known to exist.
    pub fn is_of_earlier_boot(&self, holder: &Holder, record: &Record) -> bool {
        let is_same_id = record.boot.id == self.now.id;
        let is_ended = match (is_same_id, record.boot.has_run_of(&self.now)) {
            (true, None | Some(true)) | (false, Some(true)) => false,
            (true, Some(false)) | (false, None) => self.presence(record) == Presence::Gone,
            (false, Some(false)) => self.presence(record) != Presence::Exists,
        };
        let attachment = holder.on(self.network);
        is_ended && !attachment.is_some_and(|it| self.has_link(&it))
    }

    /// Returns whether the attachment is gone although no DEL released its lease: its sandbox is
    /// gone, and the host has no end of its veth pair. Returns false if a plugin without veth pair
    /// attached the sandbox, because its link may exist in a sandbox that no path leads to.
    pub fn is_gone(&self, attachment: &Attachment, record: &Record) -> bool {
        let Some(origin) = &record.origin else {
            return false;
        };
        role(&origin.plugin) == Some(Role::InterfacePair)
            && self.presence(record) == Presence::Gone
            && !self.has_link(attachment)
            && !self.has_untagged_link(origin.bridge.as_deref())
    }

    fn presence(&self, record: &Record) -> Presence {
        let sandbox = record.origin.as_ref().map(|it| &it.sandbox);
        sandbox.map_or(Presence::Unknown, |it| it.presence(self.own))
    }

    /// Returns whether the host has a link of the attachment, or of another attachment of its
    /// container to this network. Returns true if the links cannot be read.
    fn has_link(&self, attachment: &Attachment) -> bool {
        let is_beside = |tag: &str| attachment.is_beside_owner(tag);
        let is_of = |it: &Link| {
            it.alias.as_deref().is_some_and(is_beside) || attach::is_host_end(it, attachment)
        };
        self.links().is_none_or(|it| it.iter().any(is_of))
    }

    /// Returns whether a veth link without tag leads to another namespace: the reference sets no
    /// tags. With `master`, only ports of this bridge count; without, only links that are no ports.
    /// Returns true if the links cannot be read.
    fn has_untagged_link(&self, master: Option<&str>) -> bool {
        let Some(links) = self.links() else {
            return true;
        };
        let bridge = master.map(|name| links.iter().find(|it| it.name == name));
        let index = match bridge {
            Some(None) => return false,
            Some(Some(bridge)) => Some(bridge.index),
            None => None,
        };
        let is_tagged = |it: &Link| it.alias.as_deref().is_some_and(Attachment::is_owner);
        links.iter().any(|link| {
            link.kind == LinkKind::Veth
                && link.peer_namespace.is_some()
                && link.master == index
                && !is_tagged(link)
        })
    }

    fn links(&self) -> Option<&[Link]> {
        let read = || {
            let links = Connection::open().and_then(|it| it.links());
            or_note(links.context("read the links of the host"), "leases stay")
        };
        self.links.get_or_init(read).as_deref()
    }
}
