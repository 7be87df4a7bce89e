//! Transactions and requests, each with its answer.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::time::Duration;

use netlink::{Content, Datagram, Protocol, Received, Refusal, Silence, Socket};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NetlinkSerializable as _};
use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::nftables::NfTablesMessage;
use nix::errno::Errno;

use crate::error::Error;
use crate::frame::Frame;
use crate::message::{self, Message, Operation};
use crate::raw::RawMessage;
use crate::reply::Reply;

/// A netlink socket for `nf_tables` and tracked connections.
pub(crate) struct NetfilterSocket {
    socket: Socket,
    has_deleted: Cell<bool>,
}

/// Outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Committed {
    /// The kernel carried out all of it.
    Yes,
    /// The kernel carried out nothing: the rules are of another generation.
    Outdated,
}

impl NetfilterSocket {
    pub fn open() -> Result<Self, Error> {
        Self::to("open a netfilter socket", &[])
    }

    /// Opens a socket that listens to this multicast group.
    pub fn listening(group: u32) -> Result<Self, Error> {
        Self::to(LISTEN, &[group])
    }

    /// Makes room for messages between two reads.
    pub fn make_room(&self) -> Result<(), Error> {
        let made = self.socket.make_room(ROOM);
        made.map_err(|source| Error::Socket {
            action: LISTEN,
            source,
        })
    }

    /// Returns the next message of the multicast group.
    pub fn report(&self, patience: Duration) -> Result<Received, Silence> {
        self.socket.receive(patience)
    }

    fn to(action: &'static str, groups: &[u32]) -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter, groups);
        let socket = socket.map_err(|source| Error::Socket { action, source })?;
        Ok(Self {
            socket,
            has_deleted: Cell::new(false),
        })
    }

    /// Closes the socket, in another process if that takes long.
    pub fn close(self) {
        if self.has_deleted.get() {
            self.socket.close_later();
        }
    }

    /// Sends `messages` as one transaction for rules of `generation`.
    ///
    /// # Errors
    /// The first refusal; the kernel carried out nothing then.
    pub fn commit(&self, messages: Vec<Message>, generation: u32) -> Result<Committed, Error> {
        let is_deletion = messages.iter().any(is_deletion);
        let committed = self.transact(messages, generation, Some(message::batch_end()))?;
        if is_deletion && committed == Committed::Yes {
            self.has_deleted.set(true);
        }
        Ok(committed)
    }

    /// Sends `messages` as a transaction without an end: the kernel checks it and then rolls it
    /// back, like `nft --check`.
    ///
    /// # Errors
    /// The first refusal.
    pub fn dry_run(&self, messages: Vec<Message>, generation: u32) -> Result<(), Error> {
        self.transact(messages, generation, None).map(drop)
    }

    fn transact(
        &self,
        messages: Vec<Message>,
        generation: u32,
        end: Option<Message>,
    ) -> Result<Committed, Error> {
        let mut operations: Vec<Operation> = Vec::with_capacity(messages.len() + 1);
        let mut bodies = Vec::with_capacity(messages.len());
        let begin = message::batch_begin(generation);
        let frame = Frame::from(&begin);
        operations.push(begin.operation);
        for message in messages {
            bodies.push(Frame::from(&message));
            operations.push(message.operation);
        }
        match self.batch(&frame, bodies, end.as_ref().map(Into::into)) {
            Ok(()) => Ok(Committed::Yes),
            Err(Failure::Socket(error)) => Err(error),
            Err(Failure::At(0, refusal)) if refusal.errno == Errno::ERESTART => {
                Ok(Committed::Outdated)
            }
            Err(Failure::At(place, refusal)) => {
                let operation = operations.into_iter().nth(place);
                Err(operation.unwrap_or_default().refused(refusal))
            }
        }
    }

    /// Sends `messages`, which all create objects, as one transaction.
    pub fn commit_raw(&self, messages: &[RawMessage], what: &str) -> Result<(), Error> {
        let bodies = messages
            .iter()
            .map(|it| it.to_frame().with(CREATE))
            .collect();
        let [begin, end] = [message::batch_begin_of_any(), message::batch_end()];
        let committed = self.batch(&Frame::from(&begin), bodies, Some(Frame::from(&end)));
        committed.map_err(|failure| match failure {
            Failure::Socket(error) => error,
            Failure::At(place, refusal) => {
                let message = place.checked_sub(1).and_then(|it| messages.get(it));
                let of = message.map(|it| format!(" of table {}", it.text(1)));
                Error::refused(format!("{what}{}", of.unwrap_or_default()), refusal)
            }
        })
    }

    /// Sends a transaction and waits for the answer to its last message or for the first refusal.
    fn batch(
        &self,
        begin: &Frame,
        messages: Vec<Frame>,
        end: Option<Frame>,
    ) -> Result<(), Failure> {
        if messages.is_empty() {
            return Ok(());
        }
        let first = self.socket.numbers(messages.len() + 2);
        let mut datagram = Datagram::default();
        let (mut number, mut left) = (first, messages.len());
        begin.append_to(&mut datagram, number);
        for message in messages {
            (number, left) = (number + 1, left - 1);
            // Refusals arrive without a request, the first one first; this answer arrives last.
            let acknowledge = if left == 0 { NLM_F_ACK } else { 0 };
            message.with(acknowledge).append_to(&mut datagram, number);
        }
        let past = number + 1;
        if let Some(end) = end {
            end.append_to(&mut datagram, past);
        }
        self.send(&datagram)?;
        self.outcome(&(first..past))
    }

    /// Waits for the answer to the last of `numbers` or for the first refusal.
    fn outcome(&self, numbers: &Range<u32>) -> Result<(), Failure> {
        let mut refused = Ok(());
        loop {
            let Received { header, content } = self.answer(numbers)?;
            let place = header.number - numbers.start;
            match content {
                Content::Object(_) => continue,
                Content::Refused(refusal) if refused.is_ok() => {
                    refused = Err(Failure::At(place as usize, refusal));
                }
                Content::Refused(_) | Content::End => {}
            }
            if place == 0 || header.number + 1 == numbers.end {
                return refused;
            }
        }
    }

    /// Requests all objects that match `message`.
    pub fn dump(&self, message: Message) -> Result<Vec<Reply>, Error> {
        self.ask(message, NLM_F_DUMP)
    }

    /// Carries out `message`, which is no part of a transaction.
    pub fn execute(&self, message: Message) -> Result<(), Error> {
        self.ask(message, NLM_F_ACK).map(drop)
    }

    /// Requests one object; `None` if it does not exist.
    pub fn find(&self, message: Message) -> Result<Option<Reply>, Error> {
        let found = self.find_each([message])?;
        Ok(found.into_iter().next().flatten())
    }

    /// Requests an object by each of `messages`, many by one system call. Returns them in order;
    /// `None` for each that does not exist.
    ///
    /// # Errors
    /// The first refusal of another kind.
    pub fn find_each(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<Option<Reply>>, Error> {
        let messages: Vec<_> = messages.into_iter().collect();
        let mut found = Vec::with_capacity(messages.len());
        for messages in messages.chunks(MOST_QUESTIONS) {
            let first = self.socket.numbers(messages.len());
            let mut datagram = Datagram::default();
            for (message, number) in messages.iter().zip(first..) {
                Frame::from(message).append_to(&mut datagram, number);
            }
            self.send(&datagram)?;
            for (message, number) in messages.iter().zip(first..) {
                // Without NLM_F_ACK, the object or the refusal is the only answer.
                let Received { header, content } = self.answer(&(number..number + 1))?;
                found.push(match content {
                    Content::Object(body) => Some(Reply::read(header.kind, &body)?),
                    Content::Refused(refusal) => match message.operation.clone().refused(refusal) {
                        error if error.is_not_found() => None,
                        error => return Err(error),
                    },
                    Content::End => None,
                });
            }
        }
        Ok(found)
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
        let question = Frame::from(&message).with(NLM_F_DUMP);
        let ended = self.converse(&question, |kind, body| {
            let Some(reaction) = react(Reply::read(kind, body)?) else {
                return Ok(());
            };
            let mut datagram = Datagram::default();
            Frame::from(&reaction).append_to(&mut datagram, self.socket.numbers(1));
            self.send(&datagram)
        })?;
        ended.map_err(|refusal| message.operation.refused(refusal))
    }

    fn ask(&self, message: Message, flags: u16) -> Result<Vec<Reply>, Error> {
        let question = Frame::from(&message).with(flags);
        let mut replies = Vec::new();
        let ended = self.converse(&question, |kind, body| {
            replies.push(Reply::read(kind, body)?);
            Ok(())
        })?;
        ended.map_err(|refusal| message.operation.refused(refusal))?;
        Ok(replies)
    }

    /// Requests all objects that match `message`.
    pub fn dump_raw(&self, message: &RawMessage, what: &str) -> Result<Vec<RawMessage>, Error> {
        let question = message.to_frame().with(NLM_F_DUMP);
        let mut messages = Vec::new();
        let ended = self.converse(&question, |kind, body| {
            messages.extend(RawMessage::read(kind, body));
            Ok(())
        })?;
        ended.map_err(|refusal| Error::refused(format!("read {what}"), refusal))?;
        Ok(messages)
    }

    /// Sends `question` and passes the type and content of each object to `hear` until the kernel
    /// ends the answer. Lists of an interrupted dump are not repeated: a transaction compares the
    /// generation of the rules that the caller read.
    fn converse(
        &self,
        question: &Frame,
        mut hear: impl FnMut(u16, &[u8]) -> Result<(), Error>,
    ) -> Result<Result<(), Refusal>, Error> {
        let number = self.socket.numbers(1);
        let mut datagram = Datagram::default();
        question.append_to(&mut datagram, number);
        self.send(&datagram)?;
        loop {
            let Received { header, content } = self.answer(&(number..number + 1))?;
            match content {
                Content::Object(body) => hear(header.kind, &body)?,
                Content::Refused(refusal) => return Ok(Err(refusal)),
                Content::End => return Ok(Ok(())),
            }
        }
    }

    fn send(&self, datagram: &Datagram) -> Result<(), Error> {
        self.socket.send(datagram).map_err(|source| Error::Socket {
            action: "send to the kernel",
            source,
        })
    }

    fn answer(&self, numbers: &Range<u32>) -> Result<Received, Error> {
        let answer = self.socket.answer(numbers);
        answer.map_err(|silence| unheard(silence.into()))
    }
}

impl From<&Message> for Frame {
    fn from(message: &Message) -> Self {
        let mut body = vec![0; message.inner.buffer_len()];
        message.inner.serialize(&mut body);
        Self {
            kind: message.inner.message_type(),
            flags: message.flags,
            body,
        }
    }
}

/// Returns whether the kernel frees objects after the message.
fn is_deletion(message: &Message) -> bool {
    use NfTablesMessage::{DeleteChain, DeleteRule, DeleteSetElement, DeleteTable};
    matches!(
        message.inner.inner,
        NetfilterMessageInner::NfTables(
            DeleteTable(_) | DeleteChain(_) | DeleteRule(_) | DeleteSetElement(_)
        )
    )
}

/// The refused message by its place in the transaction (0 is the transaction itself), or a failed
/// socket.
enum Failure {
    At(usize, Refusal),
    Socket(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Socket(error)
    }
}

pub(crate) fn unheard(source: io::Error) -> Error {
    Error::Socket {
        action: "receive from the kernel",
        source,
    }
}

/// `NLM_F_CREATE | NLM_F_APPEND`
const CREATE: u16 = 0x0c00;

const LISTEN: &str = "listen to a netfilter socket";

/// Requests per datagram. Each answer takes 4 KiB of the socket's receive buffer (208 KiB by default).
const MOST_QUESTIONS: usize = 16;

/// Receive buffer in bytes, for messages between two reads.
const ROOM: usize = 16 << 20;
