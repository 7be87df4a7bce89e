//! A connection to `nf_tables` of one namespace.
//!
//! Other modules add the methods that read and change tables.

use std::cell::Cell;

use netlink::{Protocol, Socket};

use crate::error::failed;
use crate::{Error, message, supported};

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
    /// In that case another process closes the socket, as [`netlink::Socket::close_later`]
    /// describes.
    pub fn close(self) {
        if self.has_deleted.get() {
            self.socket.close_later();
        }
    }

    /// Returns the generation of the rules, a number that changes with every transaction of any
    /// process, even if the transaction only adds or deletes elements. Callers compare two
    /// generations to find out whether the rules have changed meanwhile.
    pub(crate) fn generation(&self) -> Result<u32, Error> {
        let ask = || self.find(message::get_generation());
        let reply = match ask() {
            // Callers that delete elements conclude from this error that the kernel has no
            // `nf_tables` and so no elements. But the kernel may refuse a single request for
            // another reason, so this function asks twice.
            Err(Error::Unsupported { .. }) => ask()?,
            reply => reply?,
        };
        let number = reply.and_then(|it| Some(*it.value(GENERATION)?.first_chunk()?));
        let number = number.ok_or_else(|| Error::Unreadable {
            reason: "no generation in the answer".to_owned(),
        })?;
        Ok(u32::from_be_bytes(number))
    }
}

/// `NFTA_GEN_ID`
const GENERATION: u16 = 1;
