//! A connection to `nf_tables` of one namespace.
//!
//! Other modules add the methods that read and change tables.

use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::nftables::{GenAttribute, NfTablesMessage};

use crate::error::Error;
use crate::message;
use crate::reply::Reply;
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

    /// Closes the connection. After a deletion the kernel takes 15 to 30 ms for it, which another
    /// process waits for, as [`netlink::Socket::close_later`] says.
    pub fn close(self) {
        self.socket.close();
    }

    /// Checks that the kernel has `nf_tables` and that this process may use it.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; [`Error::Refused`].
    pub fn probe(&self) -> Result<(), Error> {
        self.generation().map(drop)
    }

    pub(crate) fn generation(&self) -> Result<u32, Error> {
        let ask = || self.socket.find(message::get_generation());
        let reply = match ask() {
            // Asks twice: a deletion takes this error for an empty table, so it must be true.
            Err(Error::Unsupported { .. }) => ask()?,
            reply => reply?,
        };
        let number = match reply {
            Some(Reply::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewGen(it)))) => {
                it.attributes.iter().find_map(|attribute| match attribute {
                    GenAttribute::Id(number) => Some(*number),
                    _ => None,
                })
            }
            _ => None,
        };
        number.ok_or_else(|| Error::Unreadable {
            reason: "no generation in the answer".to_owned(),
        })
    }
}
