//! Waits for deletions by the kernel's notifications.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use netlink_packet_core::{NetlinkBuffer, NlasIterator};
use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};
use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::time::TimeVal;

use crate::error::Error;
use crate::table::Table;

/// A separate socket for notifications: an overrun cannot lose answers.
pub struct Watch {
    socket: Socket,
}

impl Watch {
    /// Starts to listen in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open() -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            socket.bind_auto()?;
            socket.add_membership(NFTABLES)?;
            Ok(socket)
        };
        let socket = open().map_err(|source| Error::Socket {
            action: "listen to changes of nf_tables",
            source,
        })?;
        Ok(Self { socket })
    }

    /// Waits until an element, a set or all of `table` is deleted, or until a notification was
    /// lost. Returns `false` after `patience`.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn wait_for_deletion(&self, table: &Table, patience: Duration) -> Result<bool, Error> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left < SHORTEST {
                return Ok(false);
            }
            match self.next(left) {
                Ok(datagram) if tells_of_deletion(&datagram, table.name) => return Ok(true),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(false),
                    ErrorKind::Interrupted => {}
                    _ if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(true),
                    _ => return Err(unheard(error)),
                },
            }
        }
    }

    fn next(&self, patience: Duration) -> std::io::Result<Vec<u8>> {
        let micros = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
        let patience = TimeVal::new(micros / 1_000_000, micros % 1_000_000);
        setsockopt(&self.socket, ReceiveTimeout, &patience)?;
        let mut bytes = Vec::with_capacity(LONGEST);
        self.socket.recv(&mut bytes, 0)?;
        Ok(bytes)
    }
}

fn unheard(source: std::io::Error) -> Error {
    Error::Socket {
        action: "hear of changes of nf_tables",
        source,
    }
}

/// Returns whether a message deletes an element, a set or all of the table of this name.
fn tells_of_deletion(mut datagram: &[u8], table: &str) -> bool {
    while let Ok(message) = NetlinkBuffer::new_checked(&datagram) {
        if DELETIONS.contains(&message.message_type()) && is_of(message.payload(), table) {
            return true;
        }
        let len = (message.length() as usize).next_multiple_of(4);
        datagram = datagram.get(len..).unwrap_or_default();
    }
    false
}

/// Returns whether the message is about `table`. The first attribute of each such message is the
/// table's name (`NFTA_TABLE_NAME`, `NFTA_SET_TABLE` and `NFTA_SET_ELEM_LIST_TABLE` are all 1).
fn is_of(payload: &[u8], table: &str) -> bool {
    let attributes = NlasIterator::new(payload.get(HEADER..).unwrap_or_default());
    let mut names = attributes.filter_map(|it| it.ok().filter(|it| it.kind() == TABLE_NAME));
    names.any(|it| it.value().strip_suffix(&[0]) == Some(table.as_bytes()))
}

/// `NFNLGRP_NFTABLES` in include/uapi/linux/netfilter/nfnetlink.h
const NFTABLES: u32 = 7;

/// `NFT_MSG_DELTABLE`, `NFT_MSG_DELSET` and `NFT_MSG_DELSETELEM` of `NFNL_SUBSYS_NFTABLES`.
const DELETIONS: [u16; 3] = [(0x0a << 8) | 0x02, (0x0a << 8) | 0x0b, (0x0a << 8) | 0x0e];

const TABLE_NAME: u16 = 1;

/// Size of `struct nfgenmsg` in bytes.
const HEADER: usize = 4;

/// Bytes; the kernel's notifications are shorter.
const LONGEST: usize = 64 << 10;

/// Shortest time-out: 0 would disable it.
const SHORTEST: Duration = Duration::from_micros(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a message like the kernel, in the machine's byte order; the table's name is 11 bytes
    /// long.
    fn message(kind: u16, table: &str) -> Vec<u8> {
        let header = [36_u32.to_ne_bytes(), [0; 4], [0; 4], [0; 4]].concat();
        let attribute = [16_u16, TABLE_NAME].map(u16::to_ne_bytes).concat();
        let mut message = [header, vec![1, 0, 0, 0], attribute, table.into(), vec![0]].concat();
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message
    }

    #[test]
    fn deletion_is_heard_of_the_own_table_alone() {
        let [other, own] = ["cni-another", "cni-portmap"].map(|it| message(DELETIONS[2], it));
        let added = message((0x0a << 8) | 0x0c, "cni-portmap");
        assert!(!tells_of_deletion(
            &[other.clone(), added].concat(),
            "cni-portmap"
        ));
        assert!(tells_of_deletion(&[other, own].concat(), "cni-portmap"));
        for torn in [&[][..], &[1, 0, 0, 0], &[200; 30]] {
            assert!(!tells_of_deletion(torn, "cni-portmap"));
        }
    }
}
