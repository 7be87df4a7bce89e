//! Numbers (nsid) that one namespace uses for other namespaces (`RTM_GETNSID`).

use std::os::fd::{AsFd as _, AsRawFd as _};

use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netns::Netns;
use nix::libc::{RTM_GETNSID, RTM_NEWNSID};

use crate::connection::Connection;
use crate::error::Error;
use crate::request::Request;

impl Connection {
    /// Returns the number (nsid) that the namespace of this connection uses for the namespace
    /// `other`, as in [`crate::Link::peer_namespace`]. Returns `None` if the kernel has assigned no
    /// number. Equivalent to `ip netns list-id`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn namespace_id(&self, other: &Netns) -> Result<Option<i32>, Error> {
        let file = u32::try_from(other.as_fd().as_raw_fd()).unwrap_or(u32::MAX);
        let mut message = NsidMessage::default();
        message.attributes = vec![NsidAttribute::Fd(file)];
        let request = Request::read("read a namespace's number", RTM_GETNSID, &message);
        let answers: Vec<NsidMessage> = self.objects(&[request], |it| it.read(RTM_NEWNSID))?;
        let mut attributes = answers.iter().flat_map(|it| &it.attributes);
        Ok(attributes.find_map(|it| match it {
            // The number -1 is NETNSA_NSID_NOT_ASSIGNED.
            NsidAttribute::Id(id) => Some(*id).filter(|id| *id >= 0),
            _ => None,
        }))
    }
}
