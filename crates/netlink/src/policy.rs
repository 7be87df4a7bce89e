//! XFRM policies that block packets to the host, whatever the firewall says.
//!
//! The kernel checks `IPsec` policies when it delivers a packet to the host, independently of
//! bridges, tc and `nf_tables`. A flush of the rules leaves policies alone. The kernel compares the
//! addresses that a packet had before netfilter translated it.

use ipnetwork::IpNetwork;
use netlink_packet_core::{DecodeError, Emitable, NLM_F_CREATE, NLM_F_EXCL, Parseable};
use nix::errno::Errno;
use nix::libc::{AF_INET, AF_INET6};

use crate::error::Error;
use crate::filter::{Packets, words};
use crate::message::Message;
use crate::request::Request;
use crate::socket::Protocol;
use crate::transport::Transport;

/// A netlink socket for policies; it belongs to the namespace in which it was opened.
pub struct Policies {
    transport: Transport,
}

impl Policies {
    /// Opens a socket in the calling thread's namespace; `None` if the kernel has no policies
    /// (`CONFIG_XFRM_USER`).
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Option<Self>, Error> {
        match Transport::of(Protocol::Xfrm, &[]) {
            Ok(transport) => Ok(Some(Self { transport })),
            Err(Error::Open { source })
                if source.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the host drop incoming `packets`; existing policies stay. Equivalent to `ip xfrm
    /// policy add dir in … action block`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn block(&self, packets: &[Packets]) -> Result<(), Error> {
        let requests = packets.iter().map(|packets| {
            let message = Message::new(NEW_POLICY, &Policy(*packets));
            let operation = format!("block {packets}");
            Request::change(operation, message, NLM_F_CREATE | NLM_F_EXCL)
        });
        for outcome in self.transport.outcomes(&requests.collect::<Vec<_>>())? {
            match outcome {
                Err(error) if error.is_already_exists() => {}
                outcome => drop(outcome?),
            }
        }
        Ok(())
    }

    /// Returns those of `packets` that no policy blocks.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn accepted(&self, packets: &[Packets]) -> Result<Vec<Packets>, Error> {
        let mut accepted = Vec::new();
        for packets in packets {
            let message = Message::new(GET_POLICY, &Id(*packets));
            let request = Request::new(format!("read the policy {packets}"), message, 0);
            let is_blocked = match self.transport.execute(&[request]) {
                Err(error) if error.is_not_found() => false,
                replies => {
                    let replies = replies?;
                    let mut replies = replies.iter().flatten();
                    replies.any(|it| it.read::<Blocks>(NEW_POLICY).is_some_and(|it| it.0))
                }
            };
            accepted.extend(Some(*packets).filter(|_| !is_blocked));
        }
        Ok(accepted)
    }
}

/// `struct xfrm_userpolicy_info` (include/uapi/linux/xfrm.h) that blocks these incoming packets.
struct Policy(Packets);

/// `struct xfrm_userpolicy_id` of the policy for these incoming packets.
struct Id(Packets);

/// Whether a policy blocks.
struct Blocks(bool);

impl Emitable for Policy {
    fn buffer_len(&self) -> usize {
        POLICY
    }

    fn emit(&self, buffer: &mut [u8]) {
        let mut bytes = selector(self.0);
        // Limits of bytes, packets and lifetime: none.
        bytes.extend([0xff; 4 * size_of::<u64>()]);
        bytes.resize(ACTION, 0);
        bytes.push(BLOCK);
        bytes.resize(POLICY, 0);
        buffer.copy_from_slice(&bytes);
    }
}

impl Emitable for Id {
    fn buffer_len(&self) -> usize {
        ID
    }

    fn emit(&self, buffer: &mut [u8]) {
        let mut bytes = selector(self.0);
        bytes.resize(ID, 0);
        buffer.copy_from_slice(&bytes);
    }
}

impl Parseable<[u8]> for Blocks {
    fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let action = bytes.get(ACTION);
        let action = action.ok_or_else(|| DecodeError::buffer_too_small(bytes.len(), POLICY))?;
        Ok(Self(*action == BLOCK))
    }
}

/// Returns `struct xfrm_selector` for any protocol and link.
fn selector(packets: Packets) -> Vec<u8> {
    let (to, from) = match packets {
        Packets::All => (None, None),
        Packets::To(network) => (Some(network), None),
        Packets::From(network) => (None, Some(network)),
    };
    let family = match to.or(from) {
        Some(IpNetwork::V6(_)) => AF_INET6,
        _ => AF_INET,
    };
    let mut bytes = Vec::new();
    for (network, end) in [(to, 16), (from, 32)] {
        let words = network.map(|it| words(it.network())).unwrap_or_default();
        bytes.extend(words.into_iter().flat_map(u32::to_be_bytes));
        bytes.resize(end, 0);
    }
    // Ports and their masks.
    bytes.extend([0; 8]);
    bytes.extend(u16::try_from(family).unwrap_or_default().to_ne_bytes());
    bytes.extend([to, from].map(|it| it.map_or(0, |it| it.prefix())));
    bytes.resize(SELECTOR, 0);
    bytes
}

/// Sizes of the structures and the offset of the action, in bytes.
const SELECTOR: usize = 56;
const ID: usize = 64;
const POLICY: usize = 168;
const ACTION: usize = 161;

/// `XFRM_POLICY_BLOCK`. The direction `XFRM_POLICY_IN` is 0.
const BLOCK: u8 = 1;

/// `XFRM_MSG_NEWPOLICY` and `XFRM_MSG_GETPOLICY`
const NEW_POLICY: u16 = 0x13;
const GET_POLICY: u16 = 0x15;
