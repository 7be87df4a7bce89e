//! The socket: transactions and requests, each with its answer.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage, NetlinkPayload,
    Parseable as _,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, SndBuf, SndBufForce};

use crate::error::Error;
use crate::message::{self, Message};
use crate::reply::Reply;

/// A netlink socket; it belongs to the namespace in which it was opened.
pub(crate) struct NetfilterSocket {
    socket: Socket,
    next: Cell<u32>,
}

/// Outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Committed {
    /// The kernel carried out all of it.
    Yes,
    /// The kernel carried out nothing: the rules are of another generation.
    Outdated,
}

type Answer = NetlinkMessage<Reply>;

impl NetfilterSocket {
    pub fn open() -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            socket.set_cap_ack(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|source| Error::Socket {
            action: "open a netfilter socket",
            source,
        })?;
        let next = Cell::new(1);
        Ok(Self { socket, next })
    }

    /// Opens a non-blocking socket that listens to this multicast group.
    pub fn listening(group: u32) -> Result<Self, Error> {
        let socket = Self::open()?;
        let listen = || -> io::Result<()> {
            // The kernel drops messages that do not fit.
            setsockopt(&socket.socket, RcvBufForce, &ROOM)
                .or_else(|_| setsockopt(&socket.socket, RcvBuf, &ROOM))?;
            socket.socket.add_membership(group)?;
            socket.socket.set_non_blocking(true)
        };
        let listen = listen();
        listen.map_err(|source| Error::Socket {
            action: "listen to a netfilter socket",
            source,
        })?;
        Ok(socket)
    }

    pub fn handle(&self) -> Result<OwnedFd, Error> {
        let handle = self.socket.as_fd().try_clone_to_owned();
        handle.map_err(|source| Error::Socket {
            action: "duplicate a netfilter socket",
            source,
        })
    }

    /// Sends `messages` as one transaction for rules of `generation`.
    ///
    /// # Errors
    /// The first refusal; the kernel carried out nothing then.
    pub fn commit(&self, messages: Vec<Message>, generation: u32) -> Result<Committed, Error> {
        let end = Some(message::batch_end());
        self.transact(messages, generation, end)
    }

    /// Sends `messages` as a transaction without an end: the kernel checks it and then rolls it
    /// back, like `nft --check`.
    ///
    /// # Errors
    /// The first refusal.
    pub fn rehearse(&self, messages: Vec<Message>, generation: u32) -> Result<(), Error> {
        self.transact(messages, generation, None).map(drop)
    }

    fn transact(
        &self,
        messages: Vec<Message>,
        generation: u32,
        end: Option<Message>,
    ) -> Result<Committed, Error> {
        let mut operations: Vec<_> = messages.iter().map(|it| it.operation.clone()).collect();
        let Some(last) = messages.len().checked_sub(1) else {
            return Ok(Committed::Yes);
        };
        let first = self.number(messages.len() + 2);
        let mut bytes = Vec::new();
        append(&mut bytes, message::batch_begin(generation), first, 0);
        for ((place, message), number) in messages.into_iter().enumerate().zip(first + 1..) {
            // Refusals arrive without a request, the first one first; this answer arrives last.
            let acknowledge = if place == last { NLM_F_ACK } else { 0 };
            append(&mut bytes, message, number, acknowledge);
        }
        let past = first + 1 + count(operations.len());
        if let Some(end) = end {
            append(&mut bytes, end, past, 0);
        }
        self.send(&bytes)?;
        match self.outcome(first..past) {
            Ok(()) => Ok(Committed::Yes),
            Err(Refusal::Socket(error)) => Err(error),
            Err(Refusal::At(0, Errno::ERESTART)) => Ok(Committed::Outdated),
            Err(Refusal::At(place, errno)) => {
                operations.insert(0, message::batch_end().operation);
                let operation = operations.into_iter().nth(place);
                Err(operation.unwrap_or_default().refused(errno))
            }
        }
    }

    /// Waits for the answer to the last of `numbers` or for the first refusal.
    fn outcome(&self, numbers: std::ops::Range<u32>) -> Result<(), Refusal> {
        let mut refused = Ok(());
        loop {
            for answer in self.receive()? {
                let number = answer.header.sequence_number;
                let NetlinkPayload::Error(error) = &answer.payload else {
                    continue;
                };
                if !numbers.contains(&number) {
                    continue;
                }
                let place = (number - numbers.start) as usize;
                if error.code.is_some() && refused.is_ok() {
                    refused = Err(Refusal::At(place, errno(error.raw_code())));
                }
                if place == 0 || number + 1 == numbers.end {
                    return refused;
                }
            }
        }
    }

    /// Requests all objects that match `message`.
    pub fn dump(&self, message: Message) -> Result<Vec<Reply>, Error> {
        self.ask(message, NLM_F_DUMP)
    }

    /// Requests one object.
    pub fn get(&self, message: Message) -> Result<Vec<Reply>, Error> {
        self.ask(message, NLM_F_ACK)
    }

    /// Requests objects like [`Self::dump`], in constant memory: calls `react` with each reply and
    /// sends the result before reading the next one.
    ///
    /// # Errors
    /// As [`Self::dump`]. Refusals of the reactions are ignored: their objects may be gone already.
    pub fn dump_each(
        &self,
        message: Message,
        mut react: impl FnMut(Reply) -> Option<Message>,
    ) -> Result<(), Error> {
        self.converse(message, NLM_F_DUMP, |reply| {
            let Some(reaction) = react(reply) else {
                return Ok(());
            };
            let mut bytes = Vec::new();
            append(&mut bytes, reaction, self.number(1), 0);
            self.send(&bytes)
        })
    }

    fn ask(&self, message: Message, flags: u16) -> Result<Vec<Reply>, Error> {
        let mut replies = Vec::new();
        self.converse(message, flags, |reply| {
            replies.push(reply);
            Ok(())
        })?;
        Ok(replies)
    }

    /// Sends `message` and passes each reply to `hear` until the kernel ends the list.
    fn converse(
        &self,
        message: Message,
        flags: u16,
        mut hear: impl FnMut(Reply) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let operation = message.operation.clone();
        let number = self.number(1);
        let mut bytes = Vec::new();
        append(&mut bytes, message, number, flags);
        self.send(&bytes)?;
        loop {
            for answer in self.receive()? {
                if answer.header.sequence_number != number {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::InnerMessage(message) => hear(message)?,
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(operation.refused(errno(error.raw_code())));
                    }
                    NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    /// Returns the first of `messages` unused sequence numbers. Numbers separate these answers from
    /// unread ones of an earlier request.
    pub(crate) fn number(&self, messages: usize) -> u32 {
        let first = self.next.get();
        self.next.set(first.wrapping_add(count(messages)));
        first
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        let send = || {
            // A transaction is one datagram of any size.
            if bytes.len() > SURELY_SENT {
                let size = 2 * bytes.len();
                setsockopt(&self.socket, SndBufForce, &size)
                    .or_else(|_| setsockopt(&self.socket, SndBuf, &size))?;
            }
            self.socket.send(bytes, 0)
        };
        send().map(drop).map_err(|source| Error::Socket {
            action: "send to the kernel",
            source,
        })
    }

    /// Waits for the answer to the last of `numbers`; `operation` describes the message at a place
    /// of the transaction.
    pub(crate) fn expect_success(
        &self,
        numbers: std::ops::Range<u32>,
        operation: impl FnOnce(usize) -> String,
    ) -> Result<(), Error> {
        self.outcome(numbers).map_err(|refusal| match refusal {
            Refusal::Socket(error) => error,
            Refusal::At(place, errno) => Error::Refused {
                operation: operation(place),
                errno,
            },
        })
    }

    /// Receives the next datagram.
    pub(crate) fn receive_bytes(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::with_capacity(LONGEST_ANSWER);
        let received = self.socket.recv(&mut bytes, 0);
        received.map_err(|source| Error::Socket {
            action: "receive from the kernel",
            source,
        })?;
        Ok(bytes)
    }

    fn receive(&self) -> Result<Vec<Answer>, Error> {
        let bytes = self.receive_bytes()?;
        let mut answers = Vec::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let invalid = |reason: String| Error::Unreadable { reason };
            let buffer = NetlinkBuffer::new_checked(&rest).map_err(|it| invalid(it.to_string()))?;
            let len = (buffer.length() as usize).next_multiple_of(4);
            answers.push(NetlinkMessage::parse(&buffer).map_err(|it| invalid(it.to_string()))?);
            rest = rest.get(len..).unwrap_or_default();
        }
        Ok(answers)
    }
}

/// The refused message by its place in the transaction (0 is the transaction itself), or a failed
/// socket.
enum Refusal {
    At(usize, Errno),
    Socket(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Socket(error)
    }
}

fn append(bytes: &mut Vec<u8>, message: Message, number: u32, flags: u16) {
    let mut netlink = NetlinkMessage::from(message.inner);
    netlink.header.flags = NLM_F_REQUEST | message.flags | flags;
    netlink.header.sequence_number = number;
    netlink.finalize();
    let start = bytes.len();
    bytes.resize(start + netlink.buffer_len().next_multiple_of(4), 0);
    if let Some(place) = bytes.get_mut(start..) {
        netlink.serialize(place);
    }
}

fn errno(code: i32) -> Errno {
    Errno::from_raw(code.saturating_neg())
}

/// Bytes, twice the size to which the kernel limits one datagram of a list (32 KiB:
/// `netlink_recvmsg` in `net/netlink/af_netlink.c`). A smaller buffer splits a set into more
/// datagrams, and for each one the kernel walks the set from its start.
const LONGEST_ANSWER: usize = 64 << 10;

/// Converts a count; no caller sends more than the limit.
fn count(messages: usize) -> u32 {
    u32::try_from(messages).unwrap_or(u32::MAX)
}

/// Bytes that any kernel's socket accepts at once.
const SURELY_SENT: usize = 64 << 10;

/// Receive buffer in bytes, for messages between two reads. The kernel counts some kilobytes per
/// message.
const ROOM: usize = 16 << 20;
