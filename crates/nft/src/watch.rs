//! Waits for the kernel's notification of a deletion.

use std::time::{Duration, Instant};

use netlink::Silence;

use crate::error::Error;
use crate::heard::{Deletion, Heard};
use crate::raw::{DELETE_ELEMENTS, DELETE_SET, DELETE_TABLE, RawMessage, TABLE};
use crate::socket::{NetfilterSocket, RECEIVE, failed};
use crate::table::Table;

/// A socket for notifications only. If notifications overrun this socket, no answers to requests
/// are lost, since answers arrive at another socket.
pub struct Watch {
    socket: NetfilterSocket,
}

impl Watch {
    /// Starts to listen in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open() -> Result<Self, Error> {
        let socket = NetfilterSocket::listening(NFTABLES)?;
        Ok(Self { socket })
    }

    /// Enlarges the socket's receive buffer, so that fewer notifications are lost while this
    /// process does something else.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn make_room(&self) -> Result<(), Error> {
        self.socket.make_room()
    }

    /// Returns the next notification; `None` if there is none within `patience`. Deletions count
    /// only in `tables`.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn hear(&self, tables: &[Table], patience: Duration) -> Result<Option<Heard>, Error> {
        match self.socket.report(patience) {
            Ok(report) => {
                let deletion = report.and_then(|it| Deletion::read(&it, tables));
                Ok(Some(deletion.map_or(Heard::Other, Heard::Deletion)))
            }
            Err(Silence::Deadline) => Ok(None),
            Err(Silence::Lost) => Ok(Some(Heard::Lost)),
            Err(Silence::Socket(source)) => Err(failed(RECEIVE)(source)),
        }
    }

    /// Waits until an element of `table`, a set of `table` or `table` itself is deleted. Returns
    /// `true` then, and also if a notification was lost: it may have been about such a deletion.
    /// Returns `false` after `patience`.
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
            match self.socket.report(left) {
                Ok(Some(report)) if is_deletion(&report, table.name) => return Ok(true),
                Ok(_) => {}
                Err(Silence::Deadline) => return Ok(false),
                Err(Silence::Lost) => return Ok(true),
                Err(Silence::Socket(source)) => return Err(failed(RECEIVE)(source)),
            }
        }
    }
}

/// Returns whether the notification reports the deletion of the table of this name, or of a set or
/// an element of this table.
fn is_deletion(report: &RawMessage, table: &str) -> bool {
    DELETIONS.contains(&report.kind) && report.text(TABLE) == table
}

/// `NFNLGRP_NFTABLES` in include/uapi/linux/netfilter/nfnetlink.h
const NFTABLES: u32 = 7;

const DELETIONS: [u16; 3] = [DELETE_TABLE, DELETE_SET, DELETE_ELEMENTS];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Attributes;
    use crate::raw::NEW_ELEMENTS;

    #[test]
    fn deletion_is_heard_of_the_own_table_alone() {
        let report = |kind, table| RawMessage::new(kind, 1, Attributes::new().text(TABLE, table));
        let is_heard = |report: &RawMessage| is_deletion(report, "cni-portmap");
        assert!(is_heard(&report(DELETE_ELEMENTS, "cni-portmap")));
        assert!(!is_heard(&report(DELETE_ELEMENTS, "cni-another")));
        assert!(!is_heard(&report(NEW_ELEMENTS, "cni-portmap")));
        let torn = RawMessage::read(DELETE_ELEMENTS, &[1, 0, 0, 0, 200]).unwrap();
        assert!(!is_heard(&torn));
    }
}
