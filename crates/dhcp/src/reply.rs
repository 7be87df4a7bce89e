//! A server's DHCP message in an Ethernet frame.

use std::net::Ipv4Addr;

use dhcproto::v4::borrowed::Message;
use dhcproto::v4::{CLIENT_PORT, MessageType};
use etherparse::{SlicedPacket, TransportSlice};
use netlink::MacAddress;

#[derive(Debug)]
pub(crate) struct Reply<'f> {
    /// The MAC that it came from.
    pub from: MacAddress,
    pub message: Message<'f>,
}

/// Returns the value of the option with this name in dhcproto. A malformed option is none.
macro_rules! option {
    ($reply:expr, $name:ident) => {{
        use dhcproto::v4::{DhcpOption, OptionCode};
        let mut options = $reply.message.opts();
        let option = options.find(|it| it.code() == OptionCode::$name);
        match option.map(dhcproto::v4::borrowed::DhcpOption::into_option) {
            Some(Ok(DhcpOption::$name(value))) => Some(value),
            _ => None,
        }
    }};
}

pub(crate) use option;

impl<'f> Reply<'f> {
    /// Reads an Ethernet frame; `None` if it is no message to a DHCP client.
    pub(crate) fn read(frame: &'f [u8]) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let Some(TransportSlice::Udp(udp)) = packet.transport else {
            return None;
        };
        let message = Message::new(udp.payload()).ok()?;
        let is_to_client = udp.destination_port() == CLIENT_PORT;
        is_to_client.then_some(Self {
            from: MacAddress(*frame.get(6..)?.first_chunk()?),
            message,
        })
    }

    /// Returns the kind of the message.
    pub(crate) fn kind(&self) -> Option<MessageType> {
        option!(self, MessageType)
    }

    pub(crate) fn server(&self) -> Option<Ipv4Addr> {
        option!(self, ServerIdentifier).filter(|it| !it.is_unspecified())
    }

    /// Returns why the server refuses, in its own words if it has some.
    pub(crate) fn reason(&self) -> String {
        let words = option!(self, Message).filter(|it| !it.is_empty());
        let words = words.map(|it| it.escape_debug().to_string());
        words.unwrap_or_else(|| "the server gives no reason".to_owned())
    }
}
