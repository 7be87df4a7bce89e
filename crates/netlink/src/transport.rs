//! The socket: requests in, replies out, events between them.
//!
//! The only place that is asynchronous. Everything above it blocks.

use std::io;
use std::sync::LazyLock;
use std::time::Duration;

use futures::StreamExt as _;
use futures::channel::mpsc::UnboundedReceiver;
use netlink_packet_core::{ErrorMessage, NLM_F_MULTIPART, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;
use rtnetlink::MulticastGroup;
use rtnetlink::sys::{AsyncSocket as _, SocketAddr};
use tokio::runtime::{Builder, Runtime};

use crate::error::Error;
use crate::request::Request;

type Message = NetlinkMessage<RouteNetlinkMessage>;

/// A socket in one namespace, driven while a call blocks.
pub(crate) struct Transport {
    runtime: &'static Runtime,
    handle: rtnetlink::Handle,
    events: UnboundedReceiver<(Message, SocketAddr)>,
}

/// Something that the kernel told without being asked.
pub(crate) enum Event {
    /// A change.
    Told(RouteNetlinkMessage),
    /// Some changes were lost: ask.
    Lost,
}

impl Transport {
    /// Opens a socket in the calling thread's namespace that listens to `groups`.
    pub fn open(groups: &[MulticastGroup]) -> Result<Self, Error> {
        let open = || -> io::Result<Self> {
            let runtime = runtime()?;
            let entered = runtime.enter();
            let (mut connection, handle, events) = rtnetlink::new_multicast_connection(groups)?;
            // A request that is answered by nothing else is told from a socket that died.
            connection.set_forward_ack(true);
            connection.set_forward_done(true);
            let socket = connection.socket_mut().socket_mut();
            // With the request's text left out, what follows its header are attributes.
            socket.set_cap_ack(true)?;
            socket.set_ext_ack(true)?;
            socket.set_netlink_get_strict_chk(true)?;
            runtime.spawn(connection);
            drop(entered);
            Ok(Self {
                runtime,
                handle,
                events,
            })
        };
        open().map_err(|source| Error::Open { source })
    }

    /// Sends all `requests` back to back, then reads their answers.
    ///
    /// Each stands for itself: a later one is carried out even if an earlier one is
    /// refused. The first refusal is returned.
    pub fn execute(&self, requests: Vec<Request>) -> Result<Vec<Vec<RouteNetlinkMessage>>, Error> {
        let mut pending = Vec::with_capacity(requests.len());
        for request in requests {
            let operation = request.operation;
            let answers =
                self.handle
                    .clone()
                    .request(request.message)
                    .map_err(|_| Error::Unanswered {
                        operation: operation.clone(),
                        reason: "the socket is closed",
                    })?;
            pending.push((operation, answers));
        }
        self.runtime.block_on(async {
            let mut replies = Vec::with_capacity(pending.len());
            let mut refused = None;
            for (operation, mut answers) in pending {
                let read = tokio::time::timeout(ANSWER_DEADLINE, read(&operation, &mut answers));
                let reason = "the kernel did not answer";
                let silence = || {
                    Err(Error::Unanswered {
                        operation: operation.clone(),
                        reason,
                    })
                };
                match read.await.unwrap_or_else(|_| silence()) {
                    Ok(reply) => replies.push(reply),
                    Err(error) => drop(refused.get_or_insert(error)),
                }
            }
            refused.map_or(Ok(replies), Err)
        })
    }

    /// Waits for the next event; `None` when `deadline` has passed.
    pub fn next_event(&mut self, deadline: Duration) -> Option<Event> {
        let Self {
            runtime, events, ..
        } = self;
        let next = runtime.block_on(async { tokio::time::timeout(deadline, events.next()).await });
        Some(match next.ok()? {
            Some((
                NetlinkMessage {
                    payload: NetlinkPayload::InnerMessage(message),
                    ..
                },
                _,
            )) => Event::Told(message),
            _ => Event::Lost,
        })
    }
}

/// One runtime serves all sockets of the process.
fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
        Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
    });
    let runtime = RUNTIME.as_ref();
    runtime.map_err(|error| io::Error::new(error.kind(), error.to_string()))
}

async fn read(
    operation: &str,
    answers: &mut (impl futures::Stream<Item = Message> + Unpin),
) -> Result<Vec<RouteNetlinkMessage>, Error> {
    let mut reply = Vec::new();
    while let Some(answer) = answers.next().await {
        let is_one_of_many = answer.header.flags & NLM_F_MULTIPART != 0;
        match answer.payload {
            NetlinkPayload::InnerMessage(message) => {
                reply.push(message);
                if !is_one_of_many {
                    return Ok(reply);
                }
            }
            NetlinkPayload::Error(error) if error.code.is_some() => {
                return Err(refusal(operation, &error));
            }
            NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(reply),
            _ => {}
        }
    }
    Err(Error::Unanswered {
        operation: operation.to_owned(),
        reason: "the socket is closed",
    })
}

fn refusal(operation: &str, error: &ErrorMessage) -> Error {
    Error::Refused {
        operation: operation.to_owned(),
        errno: Errno::from_raw(error.raw_code().saturating_neg()),
        message: extended_message(&error.header),
    }
}

/// The text in the attributes behind the refused request's header.
///
/// `NLMSGERR_ATTR_MSG` in include/uapi/linux/netlink.h.
fn extended_message(mut attributes: &[u8]) -> Option<String> {
    const HEADER: usize = 16;
    const MESSAGE: u16 = 1;
    attributes = attributes.get(HEADER..)?;
    loop {
        let (length, rest) = attributes.split_first_chunk::<2>()?;
        let (kind, rest) = rest.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_ne_bytes(*length));
        let value = rest.get(..length.checked_sub(4)?)?;
        if u16::from_ne_bytes(*kind) == MESSAGE {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// The kernel answers when the work is done; what takes longest is freeing a link under
/// load.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
