//! A server's DHCP message in an Ethernet frame.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use dhcproto::v4::{CLIENT_PORT, MessageType, borrowed};
use etherparse::{SlicedPacket, TransportSlice};
use netlink::MacAddress;

#[derive(Debug)]
pub(crate) struct Reply {
    /// The MAC that it came from.
    pub from: MacAddress,
    /// Number of the transaction.
    pub number: u32,
    /// Kind of the message.
    pub kind: MessageType,
    /// The client's address.
    pub address: Ipv4Addr,
    options: BTreeMap<u8, Vec<u8>>,
}

impl Reply {
    /// Reads an Ethernet frame; `None` if it is no message from a DHCP server.
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let Some(TransportSlice::Udp(udp)) = packet.transport else {
            return None;
        };
        if udp.destination_port() != CLIENT_PORT {
            return None;
        }
        let from = frame.get(6..)?.first_chunk::<6>()?;
        let message = borrowed::Message::new(udp.payload()).ok()?;
        let options = message
            .opts()
            .map(|it| (it.code().into(), it.data().to_vec()));
        let options: BTreeMap<u8, _> = options.collect();
        let kind = MessageType::from(*options.get(&MESSAGE_TYPE)?.first()?);
        Some(Self {
            from: MacAddress(*from),
            number: message.xid(),
            kind,
            address: message.yiaddr(),
            options,
        })
    }

    pub(crate) fn server(&self) -> Option<Ipv4Addr> {
        let named = self.addresses(SERVER_ID).next();
        named.filter(|it| !it.is_unspecified())
    }

    pub(crate) fn option(&self, code: u8) -> Option<&[u8]> {
        self.options.get(&code).map(Vec::as_slice)
    }

    pub(crate) fn addresses(&self, code: u8) -> impl Iterator<Item = Ipv4Addr> {
        let (addresses, _) = self.option(code).unwrap_or_default().as_chunks::<4>();
        addresses.iter().copied().map(Ipv4Addr::from)
    }

    /// Returns the number in an option of four bytes.
    pub(crate) fn number(&self, code: u8) -> Option<u32> {
        self.option(code)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// Returns why the server refuses, in its own words if it has some.
    pub(crate) fn reason(&self) -> String {
        let words = self.option(MESSAGE).map(String::from_utf8_lossy);
        let words = words
            .map(|it| it.escape_debug().to_string())
            .filter(|it| !it.is_empty());
        words.unwrap_or_else(|| "the server gives no reason".to_owned())
    }
}

const MESSAGE_TYPE: u8 = 53;
const SERVER_ID: u8 = 54;
const MESSAGE: u8 = 56;
