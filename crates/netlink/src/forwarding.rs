//! Whether packets from elsewhere are passed on.

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable as _, NetlinkDeserializable, NetlinkHeader,
    NetlinkSerializable, Nla as _, NlasIterator, Parseable as _,
};

use crate::connection::Connection;
use crate::error::Error;

/// A version of the Internet Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Connection {
    /// Whether the host forwards packets of this family. As `sysctl net.ipv4.conf.all.forwarding` or
    /// `ip -6 netconf show dev all`, without a look into `/proc/sys`.
    ///
    /// # Errors
    /// [`Error::Refused`]: the kernel does not know the family.
    pub fn forwards(&self, family: Family) -> Result<bool, Error> {
        let family = match family {
            Family::V4 => nix::libc::AF_INET,
            Family::V6 => nix::libc::AF_INET6,
        };
        let question = Netconf {
            kind: GET,
            family: u8::try_from(family).unwrap_or_default(),
            attributes: vec![DefaultNla::new(LINK, ALL_LINKS.to_ne_bytes().to_vec())],
        };
        let answer = self
            .transport
            .ask("read whether the host forwards", question)?;
        let mut attributes = answer.attributes.iter();
        let forwarding = attributes.find(|it| it.kind() == FORWARDING);
        Ok(forwarding.is_some_and(|it| {
            let mut value = vec![0; it.value_len()];
            it.emit_value(&mut value);
            value.iter().any(|byte| *byte != 0)
        }))
    }
}

/// What include/uapi/linux/netconf.h describes and netlink-packet-route does not.
pub(crate) struct Netconf {
    kind: u16,
    family: u8,
    attributes: Vec<DefaultNla>,
}

impl NetlinkSerializable for Netconf {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        HEADER + self.attributes.as_slice().buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        if let Some((header, attributes)) = buffer.split_at_mut_checked(HEADER) {
            header.copy_from_slice(&[self.family, 0, 0, 0]);
            self.attributes.as_slice().emit(attributes);
        }
    }
}

impl NetlinkDeserializable for Netconf {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let (&[family, ..], attributes) = payload
            .split_first_chunk::<HEADER>()
            .ok_or_else(|| DecodeError::buffer_too_small(payload.len(), HEADER))?;
        let attributes = NlasIterator::new(attributes);
        let attributes = attributes.map(|attribute| DefaultNla::parse(&attribute?));
        Ok(Self {
            kind: header.message_type,
            family,
            attributes: attributes.collect::<Result<_, _>>()?,
        })
    }
}

/// `RTM_GETNETCONF`.
const GET: u16 = 82;
/// `struct netconfmsg`, and what aligns the attributes.
const HEADER: usize = 4;
/// `NETCONFA_IFINDEX`, and `NETCONFA_IFINDEX_ALL` as its value.
const LINK: u16 = 1;
const ALL_LINKS: i32 = -1;
/// `NETCONFA_FORWARDING`.
const FORWARDING: u16 = 2;
