//! Requests, their answers, and the events between them.

use std::time::Duration;

use crate::error::Error;
use crate::message::Message;
use crate::request::Request;
use crate::socket::{Content, Datagram, Protocol, Received, Silence, Socket};

/// A socket in one namespace.
pub(crate) struct Transport {
    socket: Socket,
}

/// A message that the kernel sent without a request.
pub(crate) enum Event {
    /// A change in the kernel.
    Told(Message),
    /// The kernel dropped some events; the state has to be read.
    Lost,
}

/// Multicast groups: `RTNLGRP_LINK` and `RTNLGRP_IPV6_IFADDR`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Group {
    Link = 1,
    Ipv6Address = 9,
}

impl Transport {
    /// Opens an rtnetlink socket that listens to `groups` in the calling thread's namespace.
    pub fn open(groups: &[Group]) -> Result<Self, Error> {
        let groups: Vec<_> = groups.iter().map(|group| *group as u32).collect();
        Self::of(Protocol::Route, &groups)
    }

    /// Opens a socket as [`Self::open`] does, for any protocol.
    pub fn of(protocol: Protocol, groups: &[u32]) -> Result<Self, Error> {
        let socket = Socket::open(protocol, groups).map_err(|source| Error::Open { source })?;
        Ok(Self { socket })
    }

    /// Runs [`Self::outcomes`] and returns the first refusal; the other requests are carried out
    /// all the same.
    pub fn execute(&self, requests: &[Request]) -> Result<Vec<Vec<Message>>, Error> {
        self.outcomes(requests)?.into_iter().collect()
    }

    /// Sends `requests` and reads their answers. A batch has as many requests as the socket has
    /// room for answers. It has at most one list, because the kernel refuses a second one before
    /// the first ends.
    ///
    /// The requests are independent: the kernel carries out a later one even if it refused an
    /// earlier one.
    pub fn outcomes(&self, requests: &[Request]) -> Result<Vec<Outcome>, Error> {
        let mut outcomes = Vec::with_capacity(requests.len());
        let batches = requests.split_inclusive(Request::asks_for_list);
        for batch in batches.flat_map(|it| it.chunks(MOST_AT_ONCE)) {
            let first = self.send(batch)?;
            for (request, number) in batch.iter().zip(first..) {
                outcomes.push(self.outcome(request, number)?);
            }
        }
        Ok(outcomes)
    }

    /// Sends a batch and returns the number of its first request.
    fn send(&self, batch: &[Request]) -> Result<u32, Error> {
        let first = self.socket.numbers(batch.len());
        let mut datagram = Datagram::default();
        for (request, number) in batch.iter().zip(first..) {
            request.append_to(&mut datagram, number);
        }
        let unsent = |_| {
            let request = batch.first();
            let operation = request.map(|it| it.operation.clone());
            Error::Unanswered {
                operation: operation.unwrap_or_default(),
                reason: "it cannot be sent",
            }
        };
        self.socket.send(&datagram).map_err(unsent)?;
        Ok(first)
    }

    /// Reads the outcome of `request`, which was sent with this number. A list may lack unchanged
    /// objects if others came or went meanwhile; the request is repeated then.
    fn outcome(&self, request: &Request, mut number: u32) -> Result<Outcome, Error> {
        for _ in 0..MOST_LISTS {
            match self.heard(request, number)? {
                Heard::Whole(outcome) => return Ok(outcome),
                Heard::Interrupted => number = self.send(std::slice::from_ref(request))?,
            }
        }
        Err(request.unanswered("the list changed during every attempt to read it"))
    }

    fn heard(&self, request: &Request, number: u32) -> Result<Heard, Error> {
        let (mut reply, mut is_whole) = (Vec::new(), true);
        loop {
            let answer = self.socket.answer(&(number..number.saturating_add(1)));
            let Received { header, content } = answer.map_err(|silence| match silence {
                Silence::Deadline => request.unanswered("the kernel did not answer"),
                Silence::Lost | Silence::Socket(_) => request.unanswered("the answer is lost"),
            })?;
            is_whole &= !header.is_interrupted();
            let outcome = match content {
                Content::Object(body) => {
                    let message = Message::received(header.kind, body);
                    if request.keeps(&message) {
                        reply.push(message);
                    }
                    if header.is_of_list() {
                        continue;
                    }
                    Ok(reply)
                }
                _ if !is_whole => return Ok(Heard::Interrupted),
                Content::Refused(refusal) => Err(request.refused(refusal)),
                Content::End => Ok(reply),
            };
            return Ok(Heard::Whole(outcome));
        }
    }

    /// Waits for the next event; returns `None` after `deadline`.
    pub fn next_event(&self, deadline: Duration) -> Option<Event> {
        match self.socket.receive(deadline) {
            Ok(Received {
                header,
                content: Content::Object(body),
            }) => Some(Event::Told(Message::received(header.kind, body))),
            Err(Silence::Deadline) => None,
            Ok(_) | Err(Silence::Lost | Silence::Socket(_)) => Some(Event::Lost),
        }
    }
}

/// Result of reading the answers to a request.
enum Heard {
    Whole(Outcome),
    /// Objects came or went while the kernel listed them (`NLM_F_DUMP_INTR`).
    Interrupted,
}

/// The kernel's answers, or the reason of its refusal.
pub(crate) type Outcome = Result<Vec<Message>, Error>;

/// Attempts at an uninterrupted list: both a list and a change on a busy host take milliseconds.
const MOST_LISTS: usize = 100;

/// Requests per batch: an answer takes less than one of the socket's 208 kilobytes.
const MOST_AT_ONCE: usize = 100;

#[cfg(test)]
mod tests {
    use netlink_packet_core::{NLM_F_DUMP_INTR, NLM_F_MULTIPART};
    use netlink_packet_route::link::LinkMessage;
    use nix::errno::Errno;
    use nix::libc::{NLMSG_DONE, RTM_GETLINK};

    use super::*;
    use crate::socket::{self, Header};

    /// Returns the outcome as if the list ended so; the real kernel sends the rest.
    fn outcome(code: i32, flags: u16) -> Outcome {
        let transport = Transport::open(&[]).unwrap();
        let mut datagram = Datagram::default();
        let header = Header {
            kind: u16::try_from(NLMSG_DONE).unwrap(),
            flags: NLM_F_MULTIPART | flags,
            number: transport.socket.numbers(1),
        };
        datagram.add(header, &code.to_ne_bytes());
        let received = socket::parse(datagram.bytes()).unwrap();
        transport.socket.received.replace(received);
        let links = Message::new(RTM_GETLINK, &LinkMessage::default());
        let request = Request::read_all("read links", links);
        transport.outcome(&request, header.number).unwrap()
    }

    #[test]
    fn list_that_was_interrupted_is_asked_for_anew() {
        assert!(outcome(0, 0).unwrap().is_empty());
        let links = outcome(0, NLM_F_DUMP_INTR).unwrap();
        assert!(!links.is_empty(), "there is lo, at least");
    }

    #[test]
    fn list_that_ends_with_an_error_is_refused() {
        let error = outcome(-(Errno::ENODEV as i32), 0).unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }
}
