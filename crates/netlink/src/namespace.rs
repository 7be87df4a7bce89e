//! Numbers (nsid) that one namespace uses for other namespaces (`RTM_GETNSID`).

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _};

use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netns::Netns;
use nix::libc::{self, RTM_GETNSID, RTM_NEWNSID};
use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, sockopt_impl};

use crate::message::values;
use crate::{Connection, Error, Message, Request};

sockopt_impl!(
    /// The cookie of a socket's network namespace.
    NamespaceCookie,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_NETNS_COOKIE,
    u64
);

impl Connection {
    /// Returns the cookie of this connection's namespace, a number that the kernel gives no other
    /// namespace until the next boot. Returns `None` before Linux 5.14.
    pub fn namespace_cookie(&self) -> Option<u64> {
        getsockopt(&self.socket, NamespaceCookie).ok()
    }

    /// Returns the number (nsid) that the namespace of this connection uses for the namespace
    /// `other`, as in [`crate::Link::peer_namespace`]. Returns `None` if the kernel has assigned no
    /// number. Equivalent to `ip netns list-id`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn namespace_id(&self, other: &Netns) -> Result<Option<i32>, Error> {
        let file = u32::try_from(other.as_fd().as_raw_fd()).unwrap_or(u32::MAX);
        let request = [lookup(NsidAttribute::Fd(file))];
        Ok(self.objects(&request, of_answer)?.first().copied())
    }

    /// Returns the numbers (nsid) that the namespace of this connection uses for the namespaces of
    /// these tasks, which are IDs of processes or threads. Leaves out ended tasks, and namespaces to
    /// which the kernel has assigned no number. Needs no right to look into the tasks, unlike
    /// `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unanswered`].
    pub fn namespaces_of(&self, tasks: &[u32]) -> Result<BTreeSet<i32>, Error> {
        let of_task = |it: &u32| lookup(NsidAttribute::Pid(*it));
        let requests: Vec<_> = tasks.iter().map(of_task).collect();
        let mut ids = BTreeSet::new();
        for outcome in self.outcomes(&requests)? {
            match outcome {
                Err(error) if error.is_not_found() => {}
                answers => ids.extend(answers?.iter().filter_map(of_answer)),
            }
        }
        Ok(ids)
    }
}

fn lookup(namespace: NsidAttribute) -> Request {
    let mut message = NsidMessage::default();
    message.attributes = vec![namespace];
    Request::read("read a namespace's number", RTM_GETNSID, &message)
}

fn of_answer(answer: &Message) -> Option<i32> {
    let answer: NsidMessage = answer.read(RTM_NEWNSID)?;
    // The number -1 is NETNSA_NSID_NOT_ASSIGNED.
    values!(answer.attributes, NsidAttribute::Id).find(|id| *id >= 0)
}
