//! Waits for the kernel's notification of a deletion.

use std::time::{Duration, Instant};

use netlink::{Content, Received, Silence};

use crate::error::Error;
use crate::raw::{DELETE_ELEMENTS, DELETE_SET, DELETE_TABLE, RawMessage, TABLE};
use crate::socket::{NetfilterSocket, unheard};
use crate::table::Table;

/// A socket for notifications only. If notifications overrun the socket, no answers to requests are
/// lost, since they arrive at another socket.
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
                Ok(report) if is_deletion(&report, table.name) => return Ok(true),
                Ok(_) => {}
                Err(Silence::Deadline) => return Ok(false),
                Err(Silence::Lost) => return Ok(true),
                Err(Silence::Socket(source)) => return Err(unheard(source)),
            }
        }
    }
}

/// Returns whether the notification reports the deletion of the table of this name, or of a set or
/// an element of this table.
fn is_deletion(report: &Received, table: &str) -> bool {
    let Content::Object(body) = &report.content else {
        return false;
    };
    let message = RawMessage::read(report.header.kind, body);
    message.is_some_and(|it| DELETIONS.contains(&it.kind) && it.text(TABLE) == table)
}

/// `NFNLGRP_NFTABLES` in include/uapi/linux/netfilter/nfnetlink.h
const NFTABLES: u32 = 7;

const DELETIONS: [u16; 3] = [DELETE_TABLE, DELETE_SET, DELETE_ELEMENTS];

#[cfg(test)]
mod tests {
    use netlink::Header;

    use super::*;
    use crate::raw::NEW_ELEMENTS;

    /// Builds a message like the kernel, in the machine's byte order; the table's name is 11 bytes
    /// long.
    fn report(kind: u16, table: &str) -> Received {
        let attribute = [16_u16, TABLE].map(u16::to_ne_bytes).concat();
        let body = [vec![1, 0, 0, 0], attribute, table.into(), vec![0]].concat();
        let header = Header {
            kind,
            flags: 0,
            number: 0,
        };
        let content = Content::Object(body);
        Received { header, content }
    }

    #[test]
    fn deletion_is_heard_of_the_own_table_alone() {
        assert!(is_deletion(
            &report(DELETIONS[2], "cni-portmap"),
            "cni-portmap"
        ));
        assert!(!is_deletion(
            &report(DELETIONS[2], "cni-another"),
            "cni-portmap"
        ));
        assert!(!is_deletion(
            &report(NEW_ELEMENTS, "cni-portmap"),
            "cni-portmap"
        ));
        let mut torn = report(DELETIONS[2], "cni-portmap");
        torn.content = Content::Object(vec![1, 0, 0, 0, 200]);
        assert!(!is_deletion(&torn, "cni-portmap"));
    }
}
