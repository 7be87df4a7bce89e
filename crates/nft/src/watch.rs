//! Waits for the kernel's notifications of deletions and of new elements.

use std::time::{Duration, Instant};

use netlink::{Protocol, ReceiveError, Socket};

use crate::error::{failed, unreceived};
use crate::raw::RawMessage;
use crate::{Deletion, Error, Notification, Table};

/// A socket that receives only the kernel's notifications about `nf_tables`. Requests use another
/// socket, so no answer to a request is lost if this socket overflows.
pub struct Watch(Socket);

impl Watch {
    /// Starts to receive notifications of the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open() -> Result<Self, Error> {
        listen(NFTABLES).map(Self)
    }

    /// Waits up to `patience` for the next notification. Returns `None` if none arrives. A
    /// notification about a table that is not in `tables` is [`Notification::Other`].
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn receive(
        &self,
        tables: &[Table],
        patience: Duration,
    ) -> Result<Option<Notification>, Error> {
        match self.0.notification(patience) {
            Ok(report) => {
                let report = RawMessage::read(&report);
                let read = report.map(|it| Notification::read(&it, tables));
                Ok(Some(read.unwrap_or(Notification::Other)))
            }
            Err(ReceiveError::Deadline) => Ok(None),
            Err(ReceiveError::Socket(source)) => Err(unreceived(source)),
            Err(ReceiveError::Lost | ReceiveError::TooLong) => Ok(Some(Notification::Lost)),
        }
    }

    /// Waits up to `patience` until one of `tables` or an object in it is deleted, and `concerns`
    /// accepts the deletion. Returns `true` after such a deletion, and `false` if there is none. Also
    /// returns `true` if notifications were lost, because one of them may have reported a deletion.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn wait_for_deletion(
        &self,
        tables: &[Table],
        concerns: impl Fn(&Deletion) -> bool,
        patience: Duration,
    ) -> Result<bool, Error> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            match self.receive(tables, left)? {
                None => return Ok(false),
                Some(Notification::Lost) => return Ok(true),
                Some(Notification::Deletion(deletion)) if concerns(&deletion) => return Ok(true),
                Some(_) => {}
            }
        }
    }
}

/// Multicast group of the notifications: `NFNLGRP_NFTABLES`
/// (include/uapi/linux/netfilter/nfnetlink.h).
const NFTABLES: u32 = 7;

/// Opens a socket that listens to one multicast group of netfilter. Its receive buffer is large, so
/// that few notifications are lost while this process does something else.
pub(crate) fn listen(group: u32) -> Result<Socket, Error> {
    let socket = Socket::open(Protocol::Netfilter, &[group]);
    let enlarged = socket.and_then(|it| it.enlarge_buffer(ROOM).map(|()| it));
    enlarged.map_err(failed("listen to a netfilter socket"))
}

/// Size in bytes of the receive buffer.
pub(crate) const ROOM: usize = 16 << 20;
