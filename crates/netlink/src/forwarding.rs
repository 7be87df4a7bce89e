//! Reads whether the host forwards packets.

use netlink_packet_core::{DecodeError, DefaultNla, Emitable, Nla as _, NlasIterator, Parseable};
use nix::libc::{AF_INET, AF_INET6, RTM_GETNETCONF, RTM_NEWNETCONF};

use crate::connection::Connection;
use crate::error::Error;
use crate::message::Message;
use crate::request::Request;

/// A version of the Internet Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Connection {
    /// Returns whether the host forwards packets of this family. As `sysctl
    /// net.ipv4.conf.all.forwarding` or `ip -6 netconf show dev all`, without a lookup in
    /// `/proc/sys`.
    ///
    /// # Errors
    /// [`Error::Refused`]: the kernel does not know the family.
    pub fn forwards(&self, family: Family) -> Result<bool, Error> {
        let family = match family {
            Family::V4 => AF_INET,
            Family::V6 => AF_INET6,
        };
        let question = Netconf {
            family: u8::try_from(family).unwrap_or_default(),
            attributes: vec![DefaultNla::new(LINK, ALL_LINKS.to_ne_bytes().to_vec())],
        };
        let operation = "read whether the host forwards".to_owned();
        let question = Message::new(RTM_GETNETCONF, &question);
        let answers = self.answers(Request::new(operation, question, 0))?;
        let mut answers = answers.iter();
        let answer = answers.find_map(|it| it.read::<Netconf>(RTM_NEWNETCONF));
        let attributes = answer.map(|it| it.attributes).unwrap_or_default();
        let forwarding = attributes.iter().find(|it| it.kind() == FORWARDING);
        Ok(forwarding.is_some_and(|it| {
            let mut value = vec![0; it.value_len()];
            it.emit_value(&mut value);
            value.iter().any(|byte| *byte != 0)
        }))
    }
}

/// The message of `include/uapi/linux/netconf.h`, which netlink-packet-route lacks.
pub(crate) struct Netconf {
    family: u8,
    attributes: Vec<DefaultNla>,
}

impl Emitable for Netconf {
    fn buffer_len(&self) -> usize {
        HEADER + self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        if let Some((header, attributes)) = buffer.split_at_mut_checked(HEADER) {
            header.copy_from_slice(&[self.family, 0, 0, 0]);
            self.attributes.as_slice().emit(attributes);
        }
    }
}

impl Parseable<[u8]> for Netconf {
    fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (&[family, ..], attributes) = bytes
            .split_first_chunk::<HEADER>()
            .ok_or_else(|| DecodeError::buffer_too_small(bytes.len(), HEADER))?;
        let attributes = NlasIterator::new(attributes);
        let attributes = attributes.map(|attribute| DefaultNla::parse(&attribute?));
        let attributes = attributes.collect::<Result<_, _>>()?;
        Ok(Self { family, attributes })
    }
}

/// `struct netconfmsg` with the padding before the attributes, in bytes.
const HEADER: usize = 4;
/// `NETCONFA_IFINDEX`, and `NETCONFA_IFINDEX_ALL` as its value.
const LINK: u16 = 1;
const ALL_LINKS: i32 = -1;
/// `NETCONFA_FORWARDING`.
const FORWARDING: u16 = 2;
