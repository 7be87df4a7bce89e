//! Numbers (nsid) that one namespace uses for other namespaces (`RTM_GETNSID`).

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netns::Netns;
use nix::errno::Errno;
use nix::libc::{self, RTM_DELNSID, RTM_GETNSID, RTM_NEWNSID, RTNLGRP_NSID};
use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, sockopt_impl};

use crate::error::{created, found};
use crate::message::values;
use crate::{Connection, Error, Message, Protocol, ReceiveError, Request};

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
        let request = [lookup(file_of(other))];
        Ok(self.objects(&request, of_answer)?.first().copied())
    }

    /// Returns the number (nsid) that the namespace of this connection uses for the namespace `other`:
    /// `wanted` if there was none. The number stays as long as `other` exists. Equivalent to `ip netns set
    /// NAME NUMBER`. Returns `None` if this process may not change the namespace of this connection.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn number_namespace(&self, other: &Netns, wanted: i32) -> Result<Option<i32>, Error> {
        let mut message = NsidMessage::default();
        message.attributes = vec![file_of(other), NsidAttribute::Id(wanted)];
        let assign = Request::change("number a namespace".to_owned(), RTM_NEWNSID, &message);
        let mut outcomes = self
            .outcomes(&[assign, lookup(file_of(other))])?
            .into_iter();
        match outcomes.next().map(created).transpose() {
            Err(error) if error.errno() == Some(Errno::EPERM) => {}
            assigned => drop(assigned?),
        }
        let answers = outcomes.next().transpose()?;
        Ok(answers.iter().flatten().find_map(of_answer))
    }

    /// Returns whether a namespace exists for which the namespace of this connection uses the number
    /// `id` (nsid).
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn has_namespace(&self, id: i32) -> Result<bool, Error> {
        let request = [lookup(NsidAttribute::Id(id))];
        Ok(found(self.objects(&request, of_answer))?.is_some())
    }

    /// Waits up to `patience` until the namespace ends that has the number `id` (nsid) now. Returns
    /// whether it has ended. This connection is in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Open`] and [`Error::Refused`].
    pub fn has_ended_within(&self, id: i32, patience: Duration) -> Result<bool, Error> {
        let events = Self::to(Protocol::Route, &[RTNLGRP_NSID])?;
        let end = Instant::now() + patience;
        while self.has_namespace(id)? {
            let left = end.saturating_duration_since(Instant::now());
            match events.socket.notification(left) {
                // Another namespace may have the number already.
                Ok(event) if id_in(&event, RTM_DELNSID) == Some(id) => return Ok(true),
                Err(ReceiveError::Socket(source)) => return Err(Error::Open { source }),
                _ if left.is_zero() => return Ok(false),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Returns the first of these tasks, which are IDs of processes or threads, that is in the
    /// namespace for which the namespace of this connection uses the number `id` (nsid).
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unanswered`].
    pub fn task_in(&self, id: i32, tasks: &[u32]) -> Result<Option<u32>, Error> {
        let of_tasks = self.namespaces_by_task(tasks)?;
        let mut of_tasks = tasks.iter().zip(of_tasks);
        Ok(of_tasks.find(|it| it.1 == Some(id)).map(|it| *it.0))
    }

    /// Returns the numbers (nsid) that the namespace of this connection uses for the namespaces of
    /// these tasks, which are IDs of processes or threads. Leaves out ended tasks, and namespaces to
    /// which the kernel has assigned no number. Needs no right to look into the tasks, unlike
    /// `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unanswered`].
    pub fn namespaces_of(&self, tasks: &[u32]) -> Result<BTreeSet<i32>, Error> {
        Ok(self
            .namespaces_by_task(tasks)?
            .into_iter()
            .flatten()
            .collect())
    }

    fn namespaces_by_task(&self, tasks: &[u32]) -> Result<Vec<Option<i32>>, Error> {
        let of_task = |it: &u32| lookup(NsidAttribute::Pid(*it));
        let requests: Vec<_> = tasks.iter().map(of_task).collect();
        let outcomes = self.outcomes(&requests)?.into_iter();
        let ids = outcomes.map(|it| Ok(found(it)?.and_then(|it| it.iter().find_map(of_answer))));
        ids.collect()
    }
}

fn file_of(namespace: &Netns) -> NsidAttribute {
    let file = u32::try_from(namespace.as_fd().as_raw_fd());
    NsidAttribute::Fd(file.unwrap_or(u32::MAX))
}

fn lookup(namespace: NsidAttribute) -> Request {
    let mut message = NsidMessage::default();
    message.attributes = vec![namespace];
    Request::read("read a namespace's number", RTM_GETNSID, &message)
}

fn of_answer(answer: &Message) -> Option<i32> {
    id_in(answer, RTM_NEWNSID)
}

fn id_in(message: &Message, kind: u16) -> Option<i32> {
    let answer: NsidMessage = message.read(kind)?;
    // The number -1 is NETNSA_NSID_NOT_ASSIGNED.
    values!(answer.attributes, NsidAttribute::Id).find(|id| *id >= 0)
}
