//! Waits for the kernel's notifications of deletions and of new elements.

use std::slice;
use std::time::{Duration, Instant};

use netlink::{Content, Protocol, Received, Silence, Socket};

use crate::error::{RECEIVE, failed};
use crate::raw::RawMessage;
use crate::{Error, Notification, Table};

/// A socket that receives only the kernel's notifications about `nf_tables`. Requests use another
/// socket, so no answer to a request is lost if this socket overflows.
pub struct Watch {
    listener: Listener,
}

impl Watch {
    /// Starts to receive notifications of the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open() -> Result<Self, Error> {
        let listener = Listener::open(NFTABLES)?;
        Ok(Self { listener })
    }

    /// Enlarges the socket's receive buffer, so that fewer notifications are lost while this
    /// process does something else.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn enlarge_buffer(&self) -> Result<(), Error> {
        self.listener.enlarge_buffer()
    }

    /// Waits up to `patience` for the next notification. Returns `None` if none arrives. A
    /// notification about a table that is not in `tables` is [`Notification::Other`].
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn hear(
        &self,
        tables: &[Table],
        patience: Duration,
    ) -> Result<Option<Notification>, Error> {
        match self.listener.report(patience) {
            Ok(report) => {
                let heard = report.map(|it| Notification::read(&it, tables));
                Ok(Some(heard.unwrap_or(Notification::Other)))
            }
            Err(Silence::Deadline) => Ok(None),
            Err(Silence::Lost) => Ok(Some(Notification::Lost)),
            Err(Silence::Socket(source)) => Err(failed(RECEIVE)(source)),
        }
    }

    /// Waits up to `patience` until `table` or an object in it is deleted. Returns `true` after
    /// such a deletion, and `false` if there is none. Also returns `true` if notifications were
    /// lost, because one of them may have reported a deletion.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn wait_for_deletion(&self, table: &Table, patience: Duration) -> Result<bool, Error> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            match self.hear(slice::from_ref(table), left)? {
                None => return Ok(false),
                Some(Notification::Deletion(_) | Notification::Lost) => return Ok(true),
                Some(Notification::Addition { .. } | Notification::Other) => {}
            }
        }
    }
}

/// Multicast group of the notifications: `NFNLGRP_NFTABLES`
/// (include/uapi/linux/netfilter/nfnetlink.h).
const NFTABLES: u32 = 7;

/// A netlink socket that listens to one multicast group of netfilter.
pub(crate) struct Listener(Socket);

impl Listener {
    pub fn open(group: u32) -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter, &[group]);
        socket.map(Self).map_err(failed(LISTEN))
    }

    /// Enlarges the receive buffer, so that fewer notifications are lost between two reads.
    pub fn enlarge_buffer(&self) -> Result<(), Error> {
        self.0.enlarge_buffer(ROOM).map_err(failed(LISTEN))
    }

    /// Returns the next notification; `None` if it cannot be parsed. Returns the error
    /// [`Silence::Deadline`] if no notification arrives within `patience`, and [`Silence::Lost`] if
    /// notifications were lost.
    pub fn report(&self, patience: Duration) -> Result<Option<RawMessage>, Silence> {
        let Received { header, content } = self.0.receive(patience)?;
        Ok(match content {
            Content::Object(body) => RawMessage::read(header.kind, &body),
            Content::Refused(_) | Content::End => None,
        })
    }
}

const LISTEN: &str = "listen to a netfilter socket";

/// Size in bytes of the enlarged receive buffer.
const ROOM: usize = 16 << 20;
