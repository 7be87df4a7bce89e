//! A netlink socket for any family: sends numbered messages and parses the kernel's answers.
//!
//! The kernel carries out a request before `send` returns, so the answers are then already in the
//! socket. This module does not know the content of messages.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NetlinkBuffer,
};
use netlink_sys::SocketAddr;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_XFRM};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, SndBuf, SndBufForce};
use nix::sys::socket::{MsgFlags, setsockopt};

use crate::Message;
use crate::attributes::{text, value};
use crate::message::{ALIGNMENT, HEADER};

/// A netlink socket to the kernel; it belongs to the namespace in which it was opened.
pub struct Socket {
    inner: netlink_sys::Socket,
    next_number: Cell<u32>,
    /// Messages that were received but not yet returned to a caller.
    pub(crate) received: RefCell<VecDeque<Received>>,
}

thread_local! {
    /// Receive buffer of this thread. All sockets of the thread can share the buffer, because each
    /// datagram is parsed before the next one is received.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(LONGEST_ANSWER));
}

/// A netlink family: a part of the kernel with its own messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes and qdiscs.
    Route = NETLINK_ROUTE,
    /// `IPsec` policies.
    Xfrm = NETLINK_XFRM,
    /// `nf_tables` and tracked connections.
    Netfilter = NETLINK_NETFILTER,
}

/// A message from the kernel.
#[derive(Debug, Clone)]
pub struct Received {
    /// Number of the message that the kernel answers.
    pub number: u32,
    /// Objects were added or deleted while the kernel listed them (`NLM_F_DUMP_INTR`).
    pub is_interrupted: bool,
    /// The message's meaning.
    pub content: Content,
}

/// Meaning of a message from the kernel.
#[derive(Debug, Clone)]
pub enum Content {
    /// A description of an object, such as a link.
    Object(Message),
    /// The kernel has carried out the request, or has described all objects of a list.
    End,
    /// The kernel refuses the request.
    Refused(Refusal),
}

/// How the kernel's reply to a request ended.
#[derive(Debug)]
pub struct Reply {
    /// Why the kernel refused the request; `None` if it carried the request out.
    pub refusal: Option<Refusal>,
    /// No object was added or deleted while the kernel listed them. Otherwise, the list may even
    /// lack objects that did not change.
    pub is_whole: bool,
}

/// The kernel's reason to refuse a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kernel's error number.
    pub errno: Errno,
    /// The kernel's explanation, if it sent one (extended acknowledgement).
    pub message: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.errno.desc().to_lowercase())?;
        if self.errno == Errno::EPERM {
            f.write_str(", CAP_NET_ADMIN is needed in this network namespace")?;
        }
        let mut message = self.message.iter();
        message.try_for_each(|it| write!(f, " ({it})"))
    }
}

/// Reason why nothing was received.
#[derive(Debug)]
pub enum ReceiveError {
    /// No message came in time.
    Deadline,
    /// Messages are lost: the socket overflowed, or a message does not parse.
    Lost,
    /// The reply contains more objects than the receiver accepts.
    TooLong,
    /// The socket failed.
    Socket(io::Error),
}

impl Socket {
    /// Opens a socket in the calling thread's namespace. The socket listens to these multicast
    /// groups.
    ///
    /// # Errors
    /// The kernel lacks the protocol, or refuses the socket or a group.
    pub fn open(protocol: Protocol, groups: &[u32]) -> io::Result<Self> {
        let inner = netlink_sys::Socket::new(protocol as isize)?;
        // A connected socket receives no messages of other processes, only those of the kernel.
        inner.connect(&SocketAddr::new(0, 0))?;
        // With this option, the kernel's refusal contains only the header of the refused request,
        // so `extended_message` finds the attributes behind this header.
        inner.set_cap_ack(true)?;
        inner.set_ext_ack(true)?;
        if protocol != Protocol::Netfilter {
            inner.set_netlink_get_strict_chk(true)?;
        }
        let socket = Self {
            inner,
            next_number: Cell::new(1),
            received: RefCell::default(),
        };
        for group in groups {
            socket.join(*group)?;
        }
        Ok(socket)
    }

    /// Listens to one more multicast group.
    ///
    /// # Errors
    /// The kernel refuses the group.
    pub fn join(&self, group: u32) -> io::Result<()> {
        self.inner.add_membership(group)
    }

    /// Returns the number by which the kernel knows the socket; no other socket of the protocol in
    /// this namespace has it.
    ///
    /// # Errors
    /// The socket failed.
    pub fn port(&self) -> io::Result<u32> {
        let mut address = SocketAddr::new(0, 0);
        self.inner.get_address(&mut address)?;
        Ok(address.port_number())
    }

    /// Enlarges the receive buffer to `bytes`, so that messages between two reads are not lost. The
    /// kernel counts some kilobytes per message and drops messages that do not fit. If this process
    /// lacks `CAP_NET_ADMIN` in the initial user namespace, the kernel limits `bytes` to the sysctl
    /// `net.core.rmem_max`.
    ///
    /// # Errors
    /// The kernel refuses the option.
    pub fn enlarge_buffer(&self, bytes: usize) -> io::Result<()> {
        setsockopt(&self.inner, RcvBufForce, &bytes)
            .or_else(|_| setsockopt(&self.inner, RcvBuf, &bytes))?;
        Ok(())
    }

    /// Sends `messages`, if there are any, by one system call; they may be of any size. They get
    /// consecutive unused numbers; returns the first one. The kernel's answers to a message have the
    /// number of this message. So a caller can distinguish these answers from unread answers to
    /// earlier messages.
    ///
    /// # Errors
    /// The socket failed.
    pub fn send<'m>(&self, messages: impl IntoIterator<Item = &'m Message>) -> io::Result<u32> {
        let first = self.next_number.get();
        let mut datagram = Vec::new();
        for (message, number) in messages.into_iter().zip(first..) {
            message.append_to(&mut datagram, number);
            self.next_number.set(number.wrapping_add(1));
        }
        // The kernel refuses an empty datagram.
        if datagram.is_empty() {
            return Ok(first);
        }
        if datagram.len() > SURELY_SENT {
            let size = 2 * datagram.len();
            setsockopt(&self.inner, SndBufForce, &size)
                .or_else(|_| setsockopt(&self.inner, SndBuf, &size))?;
        }
        self.inner.send(&datagram, 0)?;
        Ok(first)
    }

    /// Reads the kernel's reply to the request with this number, and passes each object in it to
    /// `read`.
    ///
    /// # Errors
    /// The reply does not arrive as a whole, or `read` returns an error.
    pub fn reply(
        &self,
        number: u32,
        mut read: impl FnMut(Message) -> Result<(), ReceiveError>,
    ) -> Result<Reply, ReceiveError> {
        let mut is_whole = true;
        loop {
            let received = self.answer(&(number..number.saturating_add(1)))?;
            is_whole &= !received.is_interrupted;
            let refusal = match received.content {
                Content::Object(object) => {
                    let is_of_list = object.is_of_list();
                    read(object)?;
                    if is_of_list {
                        continue;
                    }
                    None
                }
                Content::End => None,
                Content::Refused(refusal) => Some(refusal),
            };
            return Ok(Reply { refusal, is_whole });
        }
    }

    /// Returns the next answer of the kernel to one of the messages whose numbers are in `numbers`.
    /// Discards all other messages that arrive before this answer.
    ///
    /// # Errors
    /// The kernel does not answer, or the answer is lost.
    pub fn answer(&self, numbers: &Range<u32>) -> Result<Received, ReceiveError> {
        loop {
            let received = self.receive(ANSWER_DEADLINE)?;
            if numbers.contains(&received.number) {
                return Ok(received);
            }
        }
    }

    /// Returns the kernel's next notification. Waits up to `deadline` for it.
    ///
    /// # Errors
    /// No notification came, or some were lost.
    pub fn notification(&self, deadline: Duration) -> Result<Message, ReceiveError> {
        match self.receive(deadline)?.content {
            Content::Object(object) => Ok(object),
            Content::Refused(_) | Content::End => Err(ReceiveError::Lost),
        }
    }

    /// Returns the next message, with any number. Waits up to `deadline` for the message.
    fn receive(&self, deadline: Duration) -> Result<Received, ReceiveError> {
        loop {
            if let Some(received) = self.received.borrow_mut().pop_front() {
                return Ok(received);
            }
            let datagram = self.next_datagram(deadline)?;
            self.received.replace(datagram);
        }
    }

    /// Leaves the socket to a process that outlives this one, because the kernel needs 15 to 30 ms to
    /// close a socket of `nf_tables` after a deletion: to the one that has deleted a link for
    /// [`crate::Connection::remove_link`], or else to a copy of this process. The `main` of the
    /// executable has to call [`crate::run`].
    pub fn close_later(self) {
        detach::close_later(self);
    }

    fn next_datagram(&self, deadline: Duration) -> Result<VecDeque<Received>, ReceiveError> {
        BUFFER.with_borrow_mut(|bytes| {
            bytes.clear();
            loop {
                match self.inner.recv(bytes, MsgFlags::MSG_DONTWAIT.bits()) {
                    Ok(_) => return parse(bytes).ok_or(ReceiveError::Lost),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(deadline)?,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                        return Err(ReceiveError::Lost);
                    }
                    Err(error) => return Err(ReceiveError::Socket(error)),
                }
            }
        })
    }

    fn wait(&self, deadline: Duration) -> Result<(), ReceiveError> {
        let timeout = PollTimeout::try_from(deadline).unwrap_or(PollTimeout::MAX);
        let mut sockets = [PollFd::new(self.inner.as_fd(), PollFlags::POLLIN)];
        match poll(&mut sockets, timeout) {
            Ok(0) => Err(ReceiveError::Deadline),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(ReceiveError::Socket(errno.into())),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl From<ReceiveError> for io::Error {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Deadline => ErrorKind::TimedOut.into(),
            ReceiveError::Lost | ReceiveError::TooLong => Errno::ENOBUFS.into(),
            ReceiveError::Socket(error) => error,
        }
    }
}

/// Splits a datagram into its messages; `None` if a message does not parse.
pub(crate) fn parse(mut bytes: &[u8]) -> Option<VecDeque<Received>> {
    let mut messages = VecDeque::new();
    while !bytes.is_empty() {
        let message = NetlinkBuffer::new_checked(bytes).ok()?;
        let (kind, flags, body) = (message.message_type(), message.flags(), message.payload());
        let content = match kind {
            NLMSG_NOOP | NLMSG_OVERRUN => None,
            NLMSG_ERROR => Some(outcome(body, extended_message)?),
            NLMSG_DONE => Some(outcome(body, |_| None)?),
            _ => Some(Content::Object(Message {
                kind,
                flags,
                body: body.to_vec(),
            })),
        };
        messages.extend(content.map(|content| Received {
            number: message.sequence_number(),
            is_interrupted: flags & NLM_F_DUMP_INTR != 0,
            content,
        }));
        let length = usize::try_from(message.length()).ok()?;
        let next = length.next_multiple_of(ALIGNMENT);
        bytes = bytes.get(next..).unwrap_or_default();
    }
    Some(messages)
}

/// Reads the error number at the start of `body`. Returns [`Content::End`] if the number means
/// success, and [`Content::Refused`] if it does not. `message` reads the explanation of a refusal
/// from the bytes after the number. Returns `None` if `body` is too short.
fn outcome(body: &[u8], message: impl Fn(&[u8]) -> Option<String>) -> Option<Content> {
    let (code, rest) = body.split_first_chunk()?;
    Some(match i32::from_ne_bytes(*code) {
        0.. => Content::End,
        code => Content::Refused(Refusal {
            errno: Errno::from_raw(code.saturating_neg()),
            message: message(rest),
        }),
    })
}

/// Returns the kernel's explanation of a refusal (`NLMSGERR_ATTR_MSG` in
/// include/uapi/linux/netlink.h); `None` if there is none. `bytes` are the header of the refused
/// request and the attributes after it.
pub(crate) fn extended_message(bytes: &[u8]) -> Option<String> {
    const MESSAGE: u16 = 1;
    value(bytes.get(HEADER..)?, MESSAGE).map(text)
}

/// Longest wait for an answer. The slowest request is to delete a link under load, because the
/// kernel answers after it has freed the link.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Size in bytes of a thread's receive buffer. The description of a link with many alternative names
/// takes 65 KiB. Any other datagram takes at most 32 KiB (`netlink_recvmsg` in
/// `net/netlink/af_netlink.c`): into a smaller buffer, the kernel splits a list into more datagrams.
/// For each datagram of a list of elements, the kernel walks the `nf_tables` set from the start.
const LONGEST_ANSWER: usize = 96 << 10;

/// Length in bytes of a datagram that every kernel accepts with the default size of the send
/// buffer. A longer datagram needs a larger send buffer.
const SURELY_SENT: usize = 64 << 10;
