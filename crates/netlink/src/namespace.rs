//! Numbers that one namespace has for others (`RTM_GETNSID`).

use std::os::fd::{AsFd as _, AsRawFd as _};

use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netns::Netns;
use nix::libc::{RTM_GETNSID, RTM_NEWNSID};

use crate::connection::Connection;
use crate::error::Error;
use crate::message::Message;
use crate::request::Request;

impl Connection {
    /// Returns this namespace's number for `other`, as in [`crate::Link::peer_namespace`].
    /// Returns `None` if no number is assigned. Equivalent to `ip netns list-id`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn namespace_id(&self, other: &Netns) -> Result<Option<i32>, Error> {
        let mut message = NsidMessage::default();
        let file = other.as_fd().as_raw_fd();
        let file = u32::try_from(file).unwrap_or(u32::MAX);
        message.attributes.push(NsidAttribute::Fd(file));
        let message = Message::new(RTM_GETNSID, &message);
        let request = Request::new("read a namespace's number".to_owned(), message, 0);
        let replies = self.transport.execute(&[request])?;
        let replies = replies.iter().flatten();
        let mut replies = replies.filter_map(|reply| reply.read::<NsidMessage>(RTM_NEWNSID));
        Ok(replies.find_map(|reply| reply.attributes.iter().find_map(nsid)))
    }
}

/// Returns the number; `None` for -1, which is `NETNSA_NSID_NOT_ASSIGNED`.
fn nsid(attribute: &NsidAttribute) -> Option<i32> {
    match attribute {
        NsidAttribute::Id(id) => Some(*id).filter(|id| *id >= 0),
        _ => None,
    }
}
