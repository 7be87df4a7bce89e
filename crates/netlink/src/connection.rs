//! A connection to the kernel of one namespace.
//!
//! The modules of the objects add the methods that read and change them.

use std::path::Path;

use netns::Netns;

use crate::error::Error;
use crate::message::Message;
use crate::request::Request;
use crate::transport::Transport;

/// A netlink socket for requests; it belongs to the namespace in which it was opened.
pub struct Connection {
    pub(crate) transport: Transport,
}

impl Connection {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Self, Error> {
        let transport = Transport::open(&[])?;
        Ok(Self { transport })
    }

    /// Opens a socket in `namespace`; the calling thread stays in its own namespace.
    ///
    /// # Errors
    /// [`Error::Open`] and [`Error::Namespace`].
    pub fn open_in(namespace: &Netns) -> Result<Self, Error> {
        namespace.run(Self::open)?
    }

    /// Opens the namespace at `path` and a socket in it. Returns `None` if the namespace no longer
    /// exists.
    ///
    /// # Errors
    /// As [`Self::open_in`].
    pub fn open_if_present(path: &Path) -> Result<Option<(Netns, Self)>, Error> {
        let open = |namespace: Netns| {
            let connection = Self::open_in(&namespace)?;
            Ok((namespace, connection))
        };
        match Netns::open(path).map_err(Error::from).and_then(open) {
            Ok(opened) => Ok(Some(opened)),
            Err(Error::Namespace(error)) if error.is_no_namespace() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends all `requests` back to back and waits until the kernel has carried out or refused
    /// each.
    ///
    /// # Errors
    /// The first refusal. The kernel carries out the other requests all the same: they are not a
    /// transaction.
    pub fn execute(&self, requests: impl AsRef<[Request]>) -> Result<(), Error> {
        self.transport.execute(requests.as_ref()).map(drop)
    }

    pub(crate) fn all(&self, operation: &str, message: Message) -> Result<Vec<Message>, Error> {
        self.answers(Request::read_all(operation, message))
    }

    /// Returns all of the kernel's answers to one request.
    pub(crate) fn answers(&self, request: Request) -> Result<Vec<Message>, Error> {
        let replies = self.transport.execute(&[request])?;
        Ok(replies.into_iter().flatten().collect())
    }
}
