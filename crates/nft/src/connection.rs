//! A connection to `nf_tables` of one namespace.
//!
//! Other modules add the methods that read and change tables.

use crate::error::Error;
use crate::message;
use crate::socket::NetfilterSocket;

/// A netlink socket; it belongs to the namespace in which it was opened.
pub struct Connection {
    pub(crate) socket: NetfilterSocket,
}

impl Connection {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open() -> Result<Self, Error> {
        let socket = NetfilterSocket::open()?;
        Ok(Self { socket })
    }

    /// Closes the connection. After a deletion, the kernel needs 15 to 30 ms to close the socket.
    /// In that case another process closes the socket, as [`netlink::Socket::close_later`]
    /// describes.
    pub fn close(self) {
        self.socket.close();
    }

    /// Checks that the kernel has `nf_tables` and that this process may use it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without `nf_tables`; [`Error::Refused`] without the permission.
    pub fn probe(&self) -> Result<(), Error> {
        self.generation().map(drop)
    }

    pub(crate) fn generation(&self) -> Result<u32, Error> {
        let ask = || self.socket.find(message::get_generation());
        let reply = match ask() {
            // Asks a second time before it returns this error. Callers that delete elements take
            // the error as proof that no elements exist.
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
