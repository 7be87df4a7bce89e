//! Requests to the kernel, each with the words of its error message.
//!
//! The modules of the objects build them.

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};

use crate::error::Error;
use crate::message::Message;
use crate::socket::{Datagram, Header, Refusal};

/// A request, to be sent alone or with others by [`crate::Connection::execute`].
#[derive(Debug, Clone)]
pub struct Request {
    pub(crate) operation: String,
    message: Message,
    flags: u16,
    keeps: Option<fn(&Message) -> bool>,
}

impl Request {
    /// Returns whether the kernel answers with a list of messages.
    pub(crate) fn asks_for_list(&self) -> bool {
        self.flags & NLM_F_DUMP == NLM_F_DUMP
    }

    pub(crate) fn unanswered(&self, reason: &'static str) -> Error {
        Error::Unanswered {
            operation: self.operation.clone(),
            reason,
        }
    }

    pub(crate) fn refused(&self, Refusal { errno, message }: Refusal) -> Error {
        Error::Refused {
            operation: self.operation.clone(),
            errno,
            message,
        }
    }

    pub(crate) fn append_to(&self, datagram: &mut Datagram, number: u32) {
        let header = Header {
            kind: self.message.kind(),
            flags: self.flags,
            number,
        };
        datagram.add(header, self.message.body());
    }

    pub(crate) fn change(operation: String, message: Message, flags: u16) -> Self {
        Self::new(operation, message, NLM_F_ACK | flags)
    }

    pub(crate) fn read_all(operation: &str, message: Message) -> Self {
        Self::new(operation.to_owned(), message, NLM_F_DUMP)
    }

    pub(crate) fn new(operation: String, message: Message, flags: u16) -> Self {
        Self {
            operation,
            message,
            flags,
            keeps: None,
        }
    }

    /// Keeps only the answers that satisfy `keeps`, so a long list takes no more memory than a
    /// short one.
    pub(crate) fn keeping(self, keeps: fn(&Message) -> bool) -> Self {
        let keeps = Some(keeps);
        Self { keeps, ..self }
    }

    pub(crate) fn keeps(&self, answer: &Message) -> bool {
        self.keeps.is_none_or(|keeps| keeps(answer))
    }
}
