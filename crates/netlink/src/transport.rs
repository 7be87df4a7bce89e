//! The socket: requests, replies and the events between them.
//!
//! The kernel works inside `send`, so its answers are in the socket when `send` returns.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLM_F_MULTIPART, NetlinkBuffer, NetlinkMessage, NetlinkPayload, Parseable as _,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::MsgFlags;

use crate::error::Error;
use crate::message::Message;
use crate::request::Request;

type Framed = NetlinkMessage<Message>;

/// A socket in one namespace.
pub(crate) struct Transport {
    socket: Socket,
    next_number: Cell<u32>,
    events: VecDeque<Framed>,
    /// The datagram received last; it is parsed at once.
    buffer: RefCell<Vec<u8>>,
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
        Self::of(NETLINK_ROUTE, groups)
    }

    /// Opens a socket as [`Self::open`] does, for another netlink protocol.
    pub fn of(protocol: isize, groups: &[Group]) -> Result<Self, Error> {
        let open = || -> io::Result<Socket> {
            let socket = Socket::new(protocol)?;
            // The socket receives messages of the kernel only from here on.
            socket.connect(&SocketAddr::new(0, 0))?;
            // Without a copy of the request, attributes follow its header in an error.
            socket.set_cap_ack(true)?;
            socket.set_ext_ack(true)?;
            socket.set_netlink_get_strict_chk(true)?;
            for group in groups {
                socket.add_membership(*group as u32)?;
            }
            Ok(socket)
        };
        Ok(Self {
            socket: open().map_err(|source| Error::Open { source })?,
            next_number: Cell::new(1),
            events: VecDeque::new(),
            buffer: RefCell::new(Vec::with_capacity(LONGEST_ANSWER)),
        })
    }

    /// Runs [`Self::outcomes`] and returns the first refusal; the other requests are carried out
    /// all the same.
    pub fn execute(&self, requests: Vec<Request>) -> Result<Vec<Vec<Message>>, Error> {
        self.outcomes(requests)?.into_iter().collect()
    }

    /// Sends `requests` and reads their answers. A batch has as many requests as the socket has
    /// room for answers. It has at most one list, because the kernel refuses a second one before
    /// the first ends.
    ///
    /// The requests are independent: the kernel carries out a later one even if it refused an
    /// earlier one.
    pub fn outcomes(&self, mut requests: Vec<Request>) -> Result<Vec<Outcome>, Error> {
        let mut outcomes = Vec::with_capacity(requests.len());
        let batches = requests.split_inclusive_mut(Request::asks_for_list);
        for batch in batches.flat_map(|it| it.chunks_mut(MOST_AT_ONCE)) {
            let mut bytes = Vec::new();
            for request in &mut *batch {
                append(&mut bytes, &mut request.message, self.next_number());
            }
            let is_sent = self.socket.send(&bytes, 0).is_ok();
            let mut answers = VecDeque::new();
            for request in batch {
                if !is_sent {
                    return Err(request.unanswered("it cannot be sent"));
                }
                outcomes.push(self.outcome(request, &mut answers)?);
            }
        }
        Ok(outcomes)
    }

    /// Reads the outcome of `request` from `answers` and from the socket. A list may lack unchanged
    /// objects if others came or went meanwhile; the request is repeated then.
    fn outcome(
        &self,
        request: &mut Request,
        answers: &mut VecDeque<Framed>,
    ) -> Result<Outcome, Error> {
        for _ in 0..MOST_LISTS {
            match self.heard(request, answers)? {
                Heard::Whole(outcome) => return Ok(outcome),
                Heard::Interrupted => self.send(request)?,
            }
        }
        Err(request.unanswered("what it lists changed each time that it was asked for"))
    }

    fn send(&self, request: &mut Request) -> Result<(), Error> {
        let mut bytes = Vec::new();
        append(&mut bytes, &mut request.message, self.next_number());
        let sent = self.socket.send(&bytes, 0);
        sent.map(drop)
            .map_err(|_| request.unanswered("it cannot be sent"))
    }

    fn heard(&self, request: &Request, answers: &mut VecDeque<Framed>) -> Result<Heard, Error> {
        let (mut reply, mut is_whole) = (Vec::new(), true);
        let refused = |code, message| refusal(&request.operation, code, message);
        loop {
            let answer = self.next_answer(request, answers)?;
            let has = |flag| answer.header.flags & flag != 0;
            is_whole &= !has(NLM_F_DUMP_INTR);
            let is_last = !has(NLM_F_MULTIPART);
            let outcome = match answer.payload {
                NetlinkPayload::InnerMessage(message) => {
                    if request.keeps(&message) {
                        reply.push(message);
                    }
                    if !is_last {
                        continue;
                    }
                    Ok(reply)
                }
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    Err(refused(error.raw_code(), extended_message(&error.header)))
                }
                NetlinkPayload::Done(_) if !is_whole => return Ok(Heard::Interrupted),
                NetlinkPayload::Done(done) if done.code < 0 => Err(refused(done.code, None)),
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => Ok(reply),
                _ => continue,
            };
            return Ok(Heard::Whole(outcome));
        }
    }

    fn next_answer(
        &self,
        request: &Request,
        answers: &mut VecDeque<Framed>,
    ) -> Result<Framed, Error> {
        let number = request.message.header.sequence_number;
        loop {
            match answers.pop_front() {
                Some(answer) if answer.header.sequence_number == number => return Ok(answer),
                Some(_) => {}
                None => {
                    let received = self.receive(ANSWER_DEADLINE);
                    *answers = received.map_err(|silence| match silence {
                        Silence::Deadline => request.unanswered("the kernel did not answer"),
                        Silence::Lost | Silence::Socket => request.unanswered("the answer is lost"),
                    })?;
                }
            }
        }
    }

    fn next_number(&self) -> u32 {
        let number = self.next_number.get();
        self.next_number.set(number.wrapping_add(1));
        number
    }

    /// Waits for the next event; returns `None` after `deadline`.
    pub fn next_event(&mut self, deadline: Duration) -> Option<Event> {
        if self.events.is_empty() {
            match self.receive(deadline) {
                Ok(events) => self.events = events,
                Err(Silence::Deadline) => return None,
                Err(Silence::Lost | Silence::Socket) => return Some(Event::Lost),
            }
        }
        Some(match self.events.pop_front()?.payload {
            NetlinkPayload::InnerMessage(message) => Event::Told(message),
            _ => Event::Lost,
        })
    }

    /// Waits for one datagram and parses it.
    fn receive(&self, deadline: Duration) -> Result<VecDeque<Framed>, Silence> {
        let mut bytes = self.buffer.borrow_mut();
        bytes.clear();
        loop {
            match self.socket.recv(&mut *bytes, MsgFlags::MSG_DONTWAIT.bits()) {
                Ok(_) => return parse(&bytes).ok_or(Silence::Lost),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(deadline)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                    return Err(Silence::Lost);
                }
                Err(_) => return Err(Silence::Socket),
            }
        }
    }

    fn wait(&self, deadline: Duration) -> Result<(), Silence> {
        let timeout = PollTimeout::try_from(deadline).unwrap_or(PollTimeout::MAX);
        let mut sockets = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut sockets, timeout) {
            Ok(0) => Err(Silence::Deadline),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(_) => Err(Silence::Socket),
        }
    }
}

/// Reason why nothing was received.
enum Silence {
    /// No message came in time.
    Deadline,
    /// The socket overflowed, or a message does not parse.
    Lost,
    /// The socket failed.
    Socket,
}

/// Result of reading the answers to a request.
enum Heard {
    Whole(Outcome),
    /// Objects came or went while the kernel listed them (`NLM_F_DUMP_INTR`).
    Interrupted,
}

/// The kernel's answers, or the reason of its refusal.
pub(crate) type Outcome = Result<Vec<Message>, Error>;

fn append(bytes: &mut Vec<u8>, message: &mut Framed, number: u32) {
    message.header.sequence_number = number;
    message.finalize();
    let start = bytes.len();
    bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
    if let Some(place) = bytes.get_mut(start..) {
        message.serialize(place);
    }
}

pub(crate) fn parse(mut bytes: &[u8]) -> Option<VecDeque<Framed>> {
    let mut messages = VecDeque::new();
    while !bytes.is_empty() {
        let buffer = NetlinkBuffer::new_checked(&bytes).ok()?;
        let len = (buffer.length() as usize).next_multiple_of(4);
        messages.push_back(Framed::parse(&buffer).ok()?);
        bytes = bytes.get(len..).unwrap_or_default();
    }
    Some(messages)
}

fn refusal(operation: &str, code: i32, message: Option<String>) -> Error {
    Error::Refused {
        operation: operation.to_owned(),
        errno: Errno::from_raw(code.saturating_neg()),
        message,
    }
}

/// Returns the kernel's message from the attributes behind the refused request's header.
///
/// `NLMSGERR_ATTR_MSG` in include/uapi/linux/netlink.h.
pub(crate) fn extended_message(mut attributes: &[u8]) -> Option<String> {
    const HEADER: usize = 16;
    const MESSAGE: u16 = 1;
    attributes = attributes.get(HEADER..)?;
    loop {
        let (length, rest) = attributes.split_first_chunk::<2>()?;
        let (kind, rest) = rest.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_ne_bytes(*length));
        let value = rest.get(..length.checked_sub(4)?)?;
        if u16::from_ne_bytes(*kind) == MESSAGE {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// Longest wait for an answer. The kernel answers when the work is done; the slowest is freeing a
/// link under load.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Twice the size to which the kernel limits one datagram of a list (`netlink_recvmsg` in
/// `net/netlink/af_netlink.c`), in bytes.
const LONGEST_ANSWER: usize = 64 << 10;

/// Attempts at an uninterrupted list: both a list and a change on a busy host take milliseconds.
const MOST_LISTS: usize = 100;

/// Requests per batch: an answer takes less than one of the socket's 208 kilobytes.
const MOST_AT_ONCE: usize = 100;

#[cfg(test)]
mod tests {
    use netlink_packet_core::{DoneMessage, NetlinkHeader};
    use netlink_packet_route::link::LinkMessage;
    use nix::libc::RTM_GETLINK;

    use super::*;

    fn done(code: i32, flags: u16) -> Framed {
        let mut done = DoneMessage::default();
        done.code = code;
        let mut message = Framed::new(NetlinkHeader::default(), NetlinkPayload::Done(done));
        message.header.flags = NLM_F_MULTIPART | flags;
        message
    }

    /// Returns the outcome as if `answer` came from the kernel; the real kernel sends the rest.
    fn outcome(answer: Framed) -> Outcome {
        let transport = Transport::open(&[]).unwrap();
        let mut answers = VecDeque::from([answer]);
        let links = Message::new(RTM_GETLINK, &LinkMessage::default());
        let mut request = Request::read_all("read links", links);
        transport.outcome(&mut request, &mut answers).unwrap()
    }

    #[test]
    fn list_that_was_interrupted_is_asked_for_anew() {
        assert!(outcome(done(0, 0)).unwrap().is_empty());
        let links = outcome(done(0, NLM_F_DUMP_INTR)).unwrap();
        assert!(!links.is_empty(), "there is lo, at least");
    }

    #[test]
    fn list_that_ends_with_an_error_is_refused() {
        let error = outcome(done(-(Errno::ENODEV as i32), 0)).unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }
}
