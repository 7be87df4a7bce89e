//! XFRM policies that block packets to the host, whatever the firewall says.
//!
//! The kernel checks `IPsec` policies when it delivers a packet to the host, independently of
//! bridges, tc and `nf_tables`. A flush of all firewall rules does not delete policies. A policy
//! applies to the addresses that a packet had before netfilter translated it.

use std::io;
use std::time::Duration;

use nix::errno::Errno;

use crate::message::Bytes;
use crate::{
    Connection, Error, IpVersion, Message, Packets, Protocol, ReceiveError, Request, Socket,
    created, found, octets,
};

/// A netlink socket for XFRM (`IPsec`) policies. It reads and changes the policies of the network
/// namespace in which it was opened.
pub struct Policies(Connection);

/// A socket that receives the kernel's notifications about changes of policies in one namespace.
pub struct PolicyEvents(Socket);

impl Policies {
    /// Opens a socket in the calling thread's namespace; `None` if the kernel does not support
    /// policies (`CONFIG_XFRM_USER`).
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Option<Self>, Error> {
        match Connection::to(Protocol::Xfrm, &[]) {
            Ok(connection) => Ok(Some(Self(connection))),
            Err(Error::Open { source })
                if source.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the host drop incoming `packets`. A policy that already exists for the same packets
    /// stays as it is. Equivalent to `ip xfrm policy add dir in … action block`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn block(&self, packets: &[Packets]) -> Result<(), Error> {
        let requests = packets.iter().map(|packets| {
            let operation = format!("block {packets}");
            Request::create(operation, NEW_POLICY, &Bytes(policy(*packets)))
        });
        for outcome in self.0.outcomes(&requests.collect::<Vec<_>>())? {
            created(outcome)?;
        }
        Ok(())
    }

    /// Deletes the policies of [`Self::block`] for these `packets`. A missing one is no error.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn unblock(&self, packets: &[Packets]) -> Result<(), Error> {
        let requests = packets.iter().map(|packets| {
            let operation = format!("delete the policy that blocks {packets}");
            Request::change(operation, DELETE_POLICY, &Bytes(id(*packets)))
        });
        for outcome in self.0.outcomes(&requests.collect::<Vec<_>>())? {
            found(outcome)?;
        }
        Ok(())
    }

    /// Returns those of `packets` that no policy of [`Self::block`] drops.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn accepted(&self, packets: &[Packets]) -> Result<Vec<Packets>, Error> {
        let requests = packets.iter().map(|packets| {
            let operation = format!("read the policy {packets}");
            Request::read(operation, GET_POLICY, &Bytes(id(*packets)))
        });
        let outcomes = self.0.outcomes(&requests.collect::<Vec<_>>())?;
        let mut accepted = Vec::new();
        for (packets, outcome) in packets.iter().zip(outcomes) {
            let answers = found(outcome)?.unwrap_or_default();
            if !answers.iter().any(blocks) {
                accepted.push(*packets);
            }
        }
        Ok(accepted)
    }
}

impl PolicyEvents {
    /// Starts to listen in the calling thread's namespace. Returns `None` if the kernel does not
    /// support policies (`CONFIG_XFRM_USER`).
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Option<Self>, Error> {
        let Some(Policies(Connection { socket, .. })) = Policies::open()? else {
            return Ok(None);
        };
        let joined = socket.join(POLICY_GROUP);
        joined.map_err(|source| Error::Open { source })?;
        Ok(Some(Self(socket)))
    }

    /// Waits until a policy changes, without a time limit. Also returns if notifications were lost.
    ///
    /// # Errors
    /// The socket failed.
    pub fn receive(&self) -> io::Result<()> {
        loop {
            match self.0.notification(Duration::MAX) {
                Err(ReceiveError::Deadline) => {}
                Err(ReceiveError::Socket(error)) => return Err(error),
                Ok(_) | Err(ReceiveError::Lost | ReceiveError::TooLong) => return Ok(()),
            }
        }
    }
}

/// Returns the `struct xfrm_userpolicy_info` (include/uapi/linux/xfrm.h) of a policy that blocks
/// these incoming packets.
fn policy(packets: Packets) -> Vec<u8> {
    let mut bytes = selector(packets);
    // Four times `XFRM_INF`: no limits of bytes and packets. The zeros after them mean no expiry.
    bytes.extend([0xff; 4 * size_of::<u64>()]);
    bytes.resize(ACTION, 0);
    bytes.push(BLOCK);
    bytes.resize(POLICY, 0);
    bytes
}

/// Returns the `struct xfrm_userpolicy_id` that identifies the policy for these incoming packets.
fn id(packets: Packets) -> Vec<u8> {
    let mut bytes = selector(packets);
    bytes.resize(ID, 0);
    bytes
}

/// Returns whether the kernel's answer is a policy that blocks packets.
fn blocks(answer: &Message) -> bool {
    answer.kind == NEW_POLICY && answer.body.get(ACTION) == Some(&BLOCK)
}

/// Returns the `struct xfrm_selector` that selects `packets` of any protocol on any link.
fn selector(packets: Packets) -> Vec<u8> {
    let (to, from) = match packets {
        Packets::All => (None, None),
        Packets::To(network) => (Some(network), None),
        Packets::From(network) => (None, Some(network)),
    };
    let network = to.or(from);
    let version = network.map_or(IpVersion::V4, |it| IpVersion::of(it.ip()));
    let mut bytes = Vec::new();
    for (network, end) in [(to, 16), (from, 32)] {
        bytes.extend(network.map(|it| octets(it.network())).unwrap_or_default());
        bytes.resize(end, 0);
    }
    // Ports and masks of 0 select every port.
    bytes.extend([0; 8]);
    bytes.extend(u16::from(version.number()).to_ne_bytes());
    bytes.extend([to, from].map(|network| network.map_or(0, |it| it.prefix())));
    bytes.resize(SELECTOR, 0);
    bytes
}

/// In this order: the sizes in bytes of `xfrm_selector`, `xfrm_userpolicy_id` and
/// `xfrm_userpolicy_info`, and the offset of the policy's action in `xfrm_userpolicy_info`.
const SELECTOR: usize = 56;
const ID: usize = 64;
const POLICY: usize = 168;
const ACTION: usize = 161;

/// Action `XFRM_POLICY_BLOCK`. The byte before the action is the direction: 0 is `XFRM_POLICY_IN`.
const BLOCK: u8 = 1;

/// Message types `XFRM_MSG_NEWPOLICY`, `XFRM_MSG_DELPOLICY` and `XFRM_MSG_GETPOLICY`.
const NEW_POLICY: u16 = 0x13;
const DELETE_POLICY: u16 = 0x14;
const GET_POLICY: u16 = 0x15;

/// Multicast group of changes of policies: `XFRMNLGRP_POLICY`.
const POLICY_GROUP: u32 = 4;
