//! Sends transactions and requests to netfilter and reads the kernel's answers.

use std::ops::Range;

use netlink::{Content, Datagram, Header, Received, Refusal};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use nix::errno::Errno;

use crate::attributes::Attributes;
use crate::error::{RECEIVE, failed};
use crate::raw::RawMessage;
use crate::register::u32_of;
use crate::{Connection, Error, Message};

/// Outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Committed {
    /// The kernel carried out the whole transaction.
    Yes,
    /// The kernel carried out nothing, because another process has changed the rules since the
    /// caller read their generation.
    Outdated,
}

/// How a transaction ends: the kernel commits it, or only checks it and then rolls it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    RollBack,
}

impl Connection {
    /// Sends `messages` as one transaction. If the caller passes a `generation` and the rules no
    /// longer have it, the kernel carries out nothing, and this function returns
    /// [`Committed::Outdated`].
    ///
    /// # Errors
    /// The kernel refuses a message. It has then carried out nothing of the transaction.
    pub(crate) fn transact(
        &self,
        messages: &[Message],
        generation: Option<u32>,
    ) -> Result<Committed, Error> {
        let committed = self.exchange(messages, generation, End::Commit)?;
        if committed == Committed::Yes && messages.iter().any(Message::is_deletion) {
            self.has_deleted.set(true);
        }
        Ok(committed)
    }

    /// Sends `messages` as a transaction without the message that ends it: the kernel checks the
    /// messages and then rolls them back, like `nft --check`. Returns [`Committed::Yes`] if the
    /// kernel would commit them. If the rules no longer have this `generation`, the kernel checks
    /// nothing, and this function returns [`Committed::Outdated`].
    ///
    /// # Errors
    /// The kernel's first refusal of a message.
    pub(crate) fn check(&self, messages: &[Message], generation: u32) -> Result<Committed, Error> {
        self.exchange(messages, Some(generation), End::RollBack)
    }

    /// Sends a transaction and waits for the kernel's answer. Returns the error for the first
    /// message that the kernel refuses.
    fn exchange(
        &self,
        messages: &[Message],
        generation: Option<u32>,
        end: End,
    ) -> Result<Committed, Error> {
        let Some((last, others)) = messages.split_last() else {
            return Ok(Committed::Yes);
        };
        let first = self.socket.numbers(messages.len() + 2);
        let mut datagram = Datagram::default();
        let expected = generation.map(|it| Attributes::new().number(BATCH_GENERATION, it));
        let expected = expected.unwrap_or_default();
        add_boundary(&mut datagram, (BATCH_BEGIN, first), &expected);
        let mut numbers = first + 1..;
        for (message, number) in others.iter().zip(numbers.by_ref()) {
            message.append_to(&mut datagram, (number, 0));
        }
        let past = first + u32_of(messages.len()) + 1;
        // The kernel sends refusals in the order of the messages, even without NLM_F_ACK. Only the
        // last message has this flag. The answer to the last message arrives last, so no refusal
        // follows it.
        last.append_to(&mut datagram, (past - 1, NLM_F_ACK));
        if end == End::Commit {
            add_boundary(&mut datagram, (BATCH_END, past), &Attributes::new());
        }
        self.send(&datagram)?;
        match self.outcome(&(first..past))? {
            Ok(()) => Ok(Committed::Yes),
            Err((0, refusal)) if refusal.errno == Errno::ERESTART => Ok(Committed::Outdated),
            Err((place, refusal)) => {
                let message = place.checked_sub(1).and_then(|it| messages.get(it));
                let operation = "change the rules".to_owned();
                Err(match message {
                    Some(message) => message.refused(refusal),
                    None => Error::Refused { operation, refusal },
                })
            }
        }
    }

    /// Waits until the kernel answers the last message of a transaction or refuses the transaction
    /// as a whole. `numbers` are the sequence numbers of the transaction's messages, without the
    /// message that ends it. Returns the first refusal with the index of the refused message in
    /// `numbers`. The index 0 is the message that begins the transaction.
    fn outcome(&self, numbers: &Range<u32>) -> Result<Result<(), (usize, Refusal)>, Error> {
        let mut refused = Ok(());
        loop {
            let Received { header, content } = self.answer(numbers)?;
            let place = header.number - numbers.start;
            match content {
                Content::Object(_) => continue,
                Content::Refused(refusal) if refused.is_ok() => {
                    refused = Err((place as usize, refusal));
                }
                Content::Refused(_) | Content::End => {}
            }
            if place == 0 || header.number + 1 == numbers.end {
                return Ok(refused);
            }
        }
    }

    /// Returns the objects that the kernel lists for `message`. Objects may be missing if another
    /// process changes rules meanwhile.
    pub(crate) fn dump(&self, message: &Message) -> Result<Vec<RawMessage>, Error> {
        let mut replies = Vec::new();
        self.converse(message, NLM_F_DUMP, |reply| {
            replies.push(reply);
            Ok(())
        })?;
        Ok(replies)
    }

    /// Sends `message` outside of a transaction, and waits until the kernel has carried it out.
    pub(crate) fn execute(&self, message: &Message) -> Result<(), Error> {
        self.converse(message, NLM_F_ACK, |_| Ok(()))
    }

    /// Returns the object that `message` requests; `None` if it does not exist.
    pub(crate) fn find(&self, message: Message) -> Result<Option<RawMessage>, Error> {
        let found = self.find_each([message])?;
        Ok(found.into_iter().next().flatten())
    }

    /// Returns the object that each of `messages` requests, in the order of `messages`; `None` for
    /// an object that does not exist. One system call sends many requests.
    ///
    /// # Errors
    /// The kernel refuses a request for another reason than a missing object.
    pub(crate) fn find_each(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<Option<RawMessage>>, Error> {
        let messages: Vec<_> = messages.into_iter().collect();
        let mut found = Vec::with_capacity(messages.len());
        for messages in messages.chunks(MOST_QUESTIONS) {
            let first = self.ask(messages, 0)?;
            for (message, number) in messages.iter().zip(first..) {
                // Without NLM_F_ACK, the object or the refusal is the only answer.
                let Received { header, content } = self.answer(&(number..number + 1))?;
                found.push(match content {
                    Content::Object(body) => RawMessage::read(header.kind, &body),
                    Content::Refused(refusal) => match message.refused(refusal) {
                        error if error.is_not_found() => None,
                        error => return Err(error),
                    },
                    Content::End => None,
                });
            }
        }
        Ok(found)
    }

    /// Requests objects like [`Self::dump`], but in constant memory. For each object, this function
    /// calls `react` and sends the message that `react` returns. It then reads the next object.
    ///
    /// # Errors
    /// The kernel refuses `message`. Refusals of the messages from `react` are ignored, because
    /// another process may have deleted their objects.
    pub(crate) fn dump_each(
        &self,
        message: &Message,
        mut react: impl FnMut(RawMessage) -> Option<Message>,
    ) -> Result<(), Error> {
        self.converse(message, NLM_F_DUMP, |reply| {
            let Some(reaction) = react(reply) else {
                return Ok(());
            };
            self.ask(&[reaction], 0).map(drop)
        })
    }

    /// Sends `message` with `flags` in addition to its own, and passes each object in the kernel's
    /// answer to `hear`. A list may be incomplete if rules change while the kernel sends it. A
    /// caller that needs a complete list has to read the generation before and after the list and
    /// compare both.
    fn converse(
        &self,
        message: &Message,
        flags: u16,
        mut hear: impl FnMut(RawMessage) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let number = self.ask(std::slice::from_ref(message), flags)?;
        loop {
            let Received { header, content } = self.answer(&(number..number + 1))?;
            match content {
                Content::Object(body) => {
                    let reply = RawMessage::read(header.kind, &body);
                    reply.map_or(Ok(()), &mut hear)?;
                }
                Content::Refused(refusal) => return Err(message.refused(refusal)),
                Content::End => return Ok(()),
            }
        }
    }

    /// Sends `messages` outside of a transaction, with `flags` in addition to their own. Gives them
    /// consecutive sequence numbers, and returns the number of the first message.
    fn ask(&self, messages: &[Message], flags: u16) -> Result<u32, Error> {
        let first = self.socket.numbers(messages.len());
        let mut datagram = Datagram::default();
        for (message, number) in messages.iter().zip(first..) {
            message.append_to(&mut datagram, (number, flags));
        }
        self.send(&datagram)?;
        Ok(first)
    }

    fn send(&self, datagram: &Datagram) -> Result<(), Error> {
        let sent = self.socket.send(datagram);
        sent.map_err(failed("send to the kernel"))
    }

    fn answer(&self, numbers: &Range<u32>) -> Result<Received, Error> {
        let answer = self.socket.answer(numbers);
        answer.map_err(|silence| failed(RECEIVE)(silence.into()))
    }
}

impl Message {
    /// Adds the message to `datagram`, with the sequence number `number`, and with `flags` in
    /// addition to its own.
    fn append_to(&self, datagram: &mut Datagram, (number, flags): (u32, u16)) {
        let header = Header {
            kind: self.raw.kind,
            flags: self.flags | flags,
            number,
        };
        datagram.add(header, &self.raw.body());
    }
}

/// Adds the message that begins or ends a transaction of `nf_tables` (`NFNL_MSG_BATCH_BEGIN`,
/// `…_END`).
fn add_boundary(datagram: &mut Datagram, (kind, number): (u16, u32), attributes: &Attributes) {
    let header = Header {
        kind,
        flags: 0,
        number,
    };
    datagram.add(header, &[&[0, 0, 0, SUBSYSTEM], &**attributes].concat());
}

/// Messages that begin and end a transaction, and the attribute with the generation. In this order:
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END` and `NFNL_BATCH_GENID`.
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const BATCH_GENERATION: u16 = 1;

/// `NFNL_SUBSYS_NFTABLES`
const SUBSYSTEM: u8 = 10;

/// Maximum number of requests in a datagram. Each answer takes 4 KiB of the socket's receive buffer
/// (208 KiB by default), so the answers to one datagram fit.
const MOST_QUESTIONS: usize = 16;
