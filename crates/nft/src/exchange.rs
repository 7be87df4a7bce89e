//! Sends transactions and requests to netfilter and reads the kernel's answers.

use std::ops::Range;
use std::slice;

use netlink::{Content, ReceiveError, Received, Refusal};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use nix::errno::Errno;

use crate::attributes::Attributes;
use crate::error::{failed, unreceived};
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

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The kernel commits the transaction.
    Commit,
    /// The kernel only checks the messages and then rolls them back, like `nft --check`, because
    /// the transaction lacks the message that ends it.
    RollBack,
}

impl Connection {
    /// Sends `messages` as one transaction. If the caller passes a `generation` and the rules no
    /// longer have it, the kernel carries out nothing, and this function returns
    /// [`Committed::Outdated`].
    ///
    /// # Errors
    /// The kernel's first refusal of a message. It has then carried out nothing of the transaction.
    pub(crate) fn transact(
        &self,
        messages: &[Message],
        generation: Option<u32>,
        end: End,
    ) -> Result<Committed, Error> {
        let Some((last, others)) = messages.split_last() else {
            return Ok(Committed::Yes);
        };
        let expected = generation.map(|it| Attributes::new().number(BATCH_GENERATION, it));
        let mut sent = vec![boundary(BATCH_BEGIN, &expected.unwrap_or_default())];
        sent.extend(others.iter().map(|it| it.encode(0)));
        // The kernel sends refusals in the order of the messages, even without NLM_F_ACK. Only the
        // last message has this flag. The answer to the last message arrives last, so no refusal
        // follows it.
        sent.push(last.encode(NLM_F_ACK));
        let answered = u32_of(sent.len());
        if end == End::Commit {
            sent.push(boundary(BATCH_END, &Attributes::new()));
        }
        let first = self.send(&sent)?;
        match self.refusal(&(first..first + answered))? {
            None => {
                let has_deleted = end == End::Commit && messages.iter().any(Message::is_deletion);
                self.has_deleted.set(self.has_deleted.get() || has_deleted);
                Ok(Committed::Yes)
            }
            Some((0, refusal)) if refusal.errno == Errno::ERESTART => Ok(Committed::Outdated),
            Some((place, refusal)) => {
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
    fn refusal(&self, numbers: &Range<u32>) -> Result<Option<(usize, Refusal)>, Error> {
        let mut refused = None;
        loop {
            let answer = self.socket.answer(numbers).map_err(unreceived)?;
            let Received {
                number, content, ..
            } = answer;
            let place = number - numbers.start;
            match content {
                Content::Object(_) => continue,
                Content::Refused(refusal) => refused = refused.or(Some((place as usize, refusal))),
                Content::End => {}
            }
            if place == 0 || number + 1 == numbers.end {
                return Ok(refused);
            }
        }
    }

    /// Returns the objects that the kernel lists for `message`. Objects may be missing if another
    /// process changes rules meanwhile.
    pub(crate) fn dump(&self, message: &Message) -> Result<Vec<RawMessage>, Error> {
        let mut replies = Vec::new();
        self.send_and_read(message, NLM_F_DUMP, |reply| {
            replies.push(reply);
            Ok(())
        })?;
        Ok(replies)
    }

    /// Sends `message` outside of a transaction, and waits until the kernel has carried it out.
    pub(crate) fn execute(&self, message: &Message) -> Result<(), Error> {
        self.send_and_read(message, NLM_F_ACK, |_| Ok(()))
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
            let requests: Vec<_> = messages.iter().map(|it| it.encode(0)).collect();
            for (message, number) in messages.iter().zip(self.send(&requests)?..) {
                let mut object = None;
                let reply = self.reply(message, number, |it| {
                    object = Some(it);
                    Ok(())
                });
                match reply {
                    Err(error) if error.is_not_found() => {}
                    reply => reply?,
                }
                found.push(object);
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
        self.send_and_read(message, NLM_F_DUMP, |reply| {
            let reaction = react(reply).map(|it| it.encode(0));
            let sent = self.socket.send(&reaction);
            sent.map(drop).map_err(ReceiveError::Socket)
        })
    }

    /// Sends `message` with `flags` in addition to its own, and passes each object in the kernel's
    /// answer to `read`. A list may be incomplete if rules change while the kernel sends it. A
    /// caller that needs a complete list has to read the generation before and after the list and
    /// compare both.
    fn send_and_read(
        &self,
        message: &Message,
        flags: u16,
        read: impl FnMut(RawMessage) -> Result<(), ReceiveError>,
    ) -> Result<(), Error> {
        let number = self.send(slice::from_ref(&message.encode(flags)))?;
        self.reply(message, number, read)
    }

    /// Passes each object in the kernel's reply to `message`, whose sequence number is `number`, to
    /// `read`.
    fn reply(
        &self,
        message: &Message,
        number: u32,
        mut read: impl FnMut(RawMessage) -> Result<(), ReceiveError>,
    ) -> Result<(), Error> {
        let reply = self.socket.reply(number, |object| {
            RawMessage::read(&object).map_or(Ok(()), &mut read)
        });
        let refusal = reply.map_err(unreceived)?.refusal;
        refusal.map_or(Ok(()), |it| Err(message.refused(it)))
    }

    fn send(&self, messages: &[netlink::Message]) -> Result<u32, Error> {
        let sent = self.socket.send(messages);
        sent.map_err(failed("send to the kernel"))
    }
}

impl Message {
    /// Returns the message as the socket sends it, with `flags` in addition to its own.
    fn encode(&self, flags: u16) -> netlink::Message {
        netlink::Message {
            kind: self.raw.kind,
            flags: self.flags | flags,
            body: self.raw.body(),
        }
    }
}

/// Returns the message that begins or ends a transaction of `nf_tables` (`NFNL_MSG_BATCH_BEGIN`,
/// `…_END`).
fn boundary(kind: u16, attributes: &Attributes) -> netlink::Message {
    netlink::Message {
        kind,
        flags: 0,
        body: [&[0, 0, 0, SUBSYSTEM], &**attributes].concat(),
    }
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
