//! A connection to `nf_tables` of one namespace.
//!
//! Other modules add the methods that read and change tables.

use std::cell::Cell;

use netlink::{Protocol, Socket};

use crate::error::failed;
use crate::{Error, Table, message, supported};

/// A netlink socket for `nf_tables` and tracked connections; it belongs to the namespace in which
/// it was opened.
pub struct Connection {
    pub(crate) socket: Socket,
    /// Whether a transaction over this socket has deleted objects, so that closing the socket takes
    /// long.
    pub(crate) has_deleted: Cell<bool>,
}

impl Connection {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter, &[]);
        Ok(Self {
            socket: socket.map_err(failed("open a netfilter socket"))?,
            has_deleted: Cell::new(false),
        })
    }

    /// Opens a socket like [`Self::open`]; `None` if the kernel has no netfilter at all, and so no
    /// rules.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open_if_supported() -> Result<Option<Self>, Error> {
        supported(Self::open())
    }

    /// Closes the connection. After a deletion, the kernel needs 15 to 30 ms to close the socket.
    /// In that case the socket is closed after the end of this process, as
    /// [`netlink::Socket::close_later`] describes.
    pub fn close(self) {
        if self.has_deleted.get() {
            self.socket.close_later();
        }
    }

    /// Returns the generation of the rules, a number that changes with every transaction of any
    /// process, even if the transaction only adds or deletes elements. Callers compare two
    /// generations to find out whether the rules have changed meanwhile.
    pub(crate) fn generation(&self) -> Result<u32, Error> {
        Ok(self.generation_and(None)?.0)
    }

    /// Returns the generation of the rules ([`Self::generation`]), and whether `table` exists. Asks
    /// for both at once.
    pub(crate) fn generation_and(&self, table: Option<&Table>) -> Result<(u32, bool), Error> {
        let ask = || {
            let questions = [message::get_generation()].into_iter();
            self.find_each(questions.chain(table.map(Table::get)))
        };
        let replies = match ask() {
            // Callers that delete elements conclude from this error that the kernel has no
            // `nf_tables` and so no elements. But the kernel may refuse a single request for
            // another reason, so this function asks twice.
            Err(Error::Unsupported { .. }) => ask()?,
            replies => replies?,
        };
        let mut replies = replies.into_iter();
        let number = replies
            .next()
            .flatten()
            .and_then(|it| Some(*it.value(GENERATION)?.first_chunk()?));
        let number = number.ok_or_else(|| Error::Unreadable {
            reason: "no generation in the answer".to_owned(),
        })?;
        let exists = replies.next().flatten().is_some();
        Ok((u32::from_be_bytes(number), exists))
    }
}

/// `NFTA_GEN_ID`
const GENERATION: u16 = 1;
