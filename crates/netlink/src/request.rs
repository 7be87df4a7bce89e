//! Requests to the kernel, each with a description for its error message.
//!
//! Other modules, one per kind of object, build the requests.

use netlink_packet_core::{Emitable, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};

use crate::{Error, Message, Refusal};

/// A request, to be sent alone or with others by [`crate::Connection::execute`].
#[derive(Debug, Clone)]
pub struct Request {
    operation: String,
    pub(crate) message: Message,
    keeps: Option<fn(&Message) -> bool>,
}

impl Request {
    /// Creates a request that reads one object. `operation` describes the request in error
    /// messages. `kind` is the message's type, such as `RTM_GETLINK`.
    pub(crate) fn read(operation: impl Into<String>, kind: u16, content: &impl Emitable) -> Self {
        Self {
            operation: operation.into(),
            message: Message::new(kind, content),
            keeps: None,
        }
    }

    /// Creates a request that reads all objects that `content` selects.
    pub(crate) fn list(operation: impl Into<String>, kind: u16, content: &impl Emitable) -> Self {
        Self::read(operation, kind, content).with(NLM_F_DUMP)
    }

    /// Creates a request that changes or deletes an object.
    pub(crate) fn change(operation: String, kind: u16, content: &impl Emitable) -> Self {
        Self::read(operation, kind, content).with(NLM_F_ACK)
    }

    /// Creates a request that creates an object. The kernel refuses the request if the object
    /// exists.
    pub(crate) fn create(operation: String, kind: u16, content: &impl Emitable) -> Self {
        Self::change(operation, kind, content).with(NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds these flags (`NLM_F_…`) to the header of the request.
    pub(crate) fn with(mut self, flags: u16) -> Self {
        self.message.flags |= flags;
        self
    }

    /// Makes the connection drop all answers for which `keeps` returns `false`, as soon as it
    /// receives them. So a long list takes no more memory than a short one.
    pub(crate) fn keeping(self, keeps: fn(&Message) -> bool) -> Self {
        let keeps = Some(keeps);
        Self { keeps, ..self }
    }

    pub(crate) fn keeps(&self, answer: &Message) -> bool {
        self.keeps.is_none_or(|keeps| keeps(answer))
    }

    /// Returns whether the kernel answers with a list of messages.
    pub(crate) fn asks_for_list(&self) -> bool {
        self.message.flags & NLM_F_DUMP == NLM_F_DUMP
    }

    pub(crate) fn unanswered(&self, reason: &'static str) -> Error {
        let operation = self.operation.clone();
        Error::Unanswered { operation, reason }
    }

    pub(crate) fn unlisted(&self, reason: &'static str) -> Error {
        let operation = self.operation.clone();
        Error::Unlisted { operation, reason }
    }

    pub(crate) fn refused(&self, refusal: Refusal) -> Error {
        let operation = self.operation.clone();
        Error::Refused { operation, refusal }
    }
}
