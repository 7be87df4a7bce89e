//! A connection, which sends requests about one network namespace to the kernel and collects the
//! answers.
//!
//! Other modules, one per kind of object, add the methods that read and change objects.

use std::path::Path;
use std::thread::{self, ThreadId};

use netns::Netns;

use crate::{Error, Message, Protocol, ReceiveError, Request, Socket};

/// A netlink socket for requests; it belongs to the namespace in which it was opened.
pub struct Connection {
    pub(crate) socket: Socket,
    /// Maximum number of attempts to read a list without an interruption.
    attempts: usize,
    /// Maximum length of a list.
    length: usize,
    /// The thread that opened the socket in its own namespace; `None` if it was in another one.
    thread: Option<ThreadId>,
}

impl Connection {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Self, Error> {
        Self::to(Protocol::Route, &[])
    }

    /// Opens a socket in the calling thread's namespace. The socket uses this protocol and listens
    /// to these multicast groups.
    pub(crate) fn to(protocol: Protocol, groups: &[u32]) -> Result<Self, Error> {
        let socket = Socket::open(protocol, groups).map_err(|source| Error::Open { source })?;
        Ok(Self {
            socket,
            attempts: MOST_LISTS,
            length: usize::MAX,
            thread: own_thread(),
        })
    }

    /// Opens a socket in the calling thread's namespace, for lists that processes in a sandbox can
    /// lengthen and change. Reading a list fails if it has more than 10,000 objects, or if it
    /// changes during each of three attempts. After a list that is too long, open another socket:
    /// the kernel refuses further lists on this one.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open_wary() -> Result<Self, Error> {
        Ok(Self {
            attempts: 3,
            length: 10_000,
            ..Self::open()?
        })
    }

    /// Opens a socket in `namespace`.
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
    /// [`Error::Open`] and [`Error::Namespace`].
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

    /// Returns whether the socket surely belongs to the namespace that the calling thread is in,
    /// because this thread opened it there.
    pub(crate) fn is_of_this_thread(&self) -> bool {
        self.thread.is_some() && self.thread == own_thread()
    }

    /// Sends all `requests` and waits until the kernel has carried out or refused each of them.
    ///
    /// # Errors
    /// The first refusal. The requests are not a transaction: the kernel also carries out the
    /// requests after a refused one.
    pub fn execute(&self, requests: impl AsRef<[Request]>) -> Result<(), Error> {
        self.replies(requests.as_ref()).map(drop)
    }

    /// Sends all `requests` like [`Self::execute`]. Returns the outcome of each of them.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn attempt(&self, requests: &[Request]) -> Result<Vec<Result<(), Error>>, Error> {
        let outcomes = self.outcomes(requests)?.into_iter();
        Ok(outcomes.map(|it| it.map(drop)).collect())
    }

    /// Sends `requests` and returns the objects that `read` finds in the answers.
    pub(crate) fn objects<T>(
        &self,
        requests: &[Request],
        read: impl Fn(&Message) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let replies = self.replies(requests)?;
        Ok(replies.iter().flatten().filter_map(read).collect())
    }

    fn replies(&self, requests: &[Request]) -> Result<Vec<Vec<Message>>, Error> {
        self.outcomes(requests)?.into_iter().collect()
    }

    /// Sends `requests` in batches and reads their answers. A batch is so small that its answers
    /// fit into the socket's buffer. Only the last request of a batch may ask for a list, because
    /// the kernel refuses a second list before the first one ends.
    ///
    /// The requests are independent: the kernel carries out a later request even if it refused an
    /// earlier one.
    pub(crate) fn outcomes(&self, requests: &[Request]) -> Result<Vec<Outcome>, Error> {
        let mut outcomes = Vec::with_capacity(requests.len());
        let batches = requests.split_inclusive(Request::asks_for_list);
        for batch in batches.flat_map(|it| it.chunks(MOST_AT_ONCE)) {
            let first = self.send(batch)?;
            for (request, number) in batch.iter().zip(first..) {
                outcomes.push(self.outcome(request, number)?);
            }
        }
        Ok(outcomes)
    }

    /// Sends a batch and returns the sequence number of its first request.
    fn send(&self, batch: &[Request]) -> Result<u32, Error> {
        match (self.socket.send(batch.iter().map(|it| &it.message)), batch) {
            (Err(_), [request, ..]) => Err(request.unanswered("it cannot be sent")),
            (sent, _) => Ok(sent.unwrap_or_default()),
        }
    }

    /// Reads the outcome of `request`, whose sequence number is `number`. If objects are added or
    /// deleted while the kernel lists them, the list may even lack objects that did not change. So
    /// this function then sends the request again, up to the connection's number of attempts.
    fn outcome(&self, request: &Request, mut number: u32) -> Result<Outcome, Error> {
        for attempt in 1.. {
            if let Some(outcome) = self.reply(request, number)? {
                return Ok(outcome);
            }
            if attempt == self.attempts {
                break;
            }
            number = self.send(std::slice::from_ref(request))?;
        }
        Err(request.unlisted("the list changed during every attempt to read it"))
    }

    /// Reads the answers to `request`, whose sequence number is `number`. Returns `None` if objects
    /// were added or deleted while the kernel listed them, because the list may be incomplete.
    fn reply(&self, request: &Request, number: u32) -> Result<Option<Outcome>, Error> {
        let mut objects = Vec::new();
        let reply = self.socket.reply(number, |object| {
            if objects.len() == self.length {
                return Err(ReceiveError::TooLong);
            }
            objects.extend(Some(object).filter(|it| request.keeps(it)));
            Ok(())
        });
        let reply = reply.map_err(|error| match error {
            ReceiveError::Deadline => request.unanswered("the kernel did not answer"),
            ReceiveError::TooLong => request.unlisted("the list is too long"),
            ReceiveError::Lost | ReceiveError::Socket(_) => {
                request.unanswered("the answer is lost")
            }
        })?;
        Ok(reply.is_whole.then(|| match reply.refusal {
            Some(refusal) => Err(request.refused(refusal)),
            None => Ok(objects),
        }))
    }
}

/// Returns the calling thread, or `None` while it is in another namespace than its own.
fn own_thread() -> Option<ThreadId> {
    (!netns::is_away()).then(|| thread::current().id())
}

/// The kernel's answers to one request, or the error if the kernel refused the request.
pub(crate) type Outcome = Result<Vec<Message>, Error>;

/// Maximum number of attempts to read a list of this host. Many attempts may be necessary: on a busy host, the kernel takes milliseconds for a list, and objects change every
/// few milliseconds.
const MOST_LISTS: usize = 100;

/// Maximum number of requests in a batch. An answer takes less than a kilobyte of the socket's
/// receive buffer, which has 208 kilobytes.
const MOST_AT_ONCE: usize = 100;

#[cfg(test)]
mod tests {
    use netlink_packet_core::{NLM_F_DUMP_INTR, NLM_F_MULTIPART};
    use netlink_packet_route::link::LinkMessage;
    use nix::errno::Errno;
    use nix::libc::{NLMSG_DONE, RTM_GETLINK};

    use super::*;
    use crate::socket;

    /// Returns the outcome of a request for a list of links. Instead of the kernel, this helper
    /// answers the request: with the end of the list, this error code and these flags. The kernel
    /// answers only if [`Connection::outcome`] repeats the request.
    fn outcome(code: i32, flags: u16) -> Outcome {
        let connection = Connection::open().unwrap();
        let message = Message {
            kind: u16::try_from(NLMSG_DONE).unwrap(),
            flags: NLM_F_MULTIPART | flags,
            body: code.to_ne_bytes().to_vec(),
        };
        let mut datagram = Vec::new();
        message.append_to(&mut datagram, 0);
        let received = socket::parse(&datagram).unwrap();
        connection.socket.received.replace(received);
        let request = Request::list("read links", RTM_GETLINK, &LinkMessage::default());
        connection.outcome(&request, 0).unwrap()
    }

    #[test]
    fn list_that_was_interrupted_is_requested_again() {
        assert!(outcome(0, 0).unwrap().is_empty());
        let links = outcome(0, NLM_F_DUMP_INTR).unwrap();
        assert!(!links.is_empty(), "there is lo, at least");
    }

    #[test]
    fn list_that_ends_with_an_error_is_refused() {
        let error = outcome(-(Errno::ENODEV as i32), 0).unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }
}
