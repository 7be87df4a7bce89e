//! Addresses with all their attributes, which a caller adds again after the kernel deleted them.

use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use nix::libc::{RTM_GETADDR, RTM_NEWADDR};
use serde::{Deserialize, Serialize};

use crate::message::Bytes;
use crate::{Address, Connection, Dad, Error, Message, Request};

/// An address with all attributes that the kernel reported, such as lifetimes and metric.
///
/// It is serialized as the bytes in which the kernel described it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<u8>", try_from = "Vec<u8>")]
pub struct SavedAddress {
    /// What this crate knows of the address.
    pub address: Address,
    message: AddressMessage,
}

impl Connection {
    /// Returns the addresses of the link with this index, for restoration, in the order of their
    /// addition.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn saved_addresses(&self, link: u32) -> Result<Vec<SavedAddress>, Error> {
        let mut message = AddressMessage::default();
        message.header.index = link;
        let request = Request::list("read addresses", RTM_GETADDR, &message);
        let mut addresses = self.objects(&[request], SavedAddress::from_answer)?;
        addresses.retain(|it| it.address.link == link);
        // The kernel lists the newest IPv6 address first.
        let is_ipv4 = |it: &SavedAddress| it.address.address.is_ipv4();
        let (ipv4, ipv6): (Vec<_>, Vec<_>) = addresses.into_iter().partition(is_ipv4);
        Ok(ipv4.into_iter().chain(ipv6.into_iter().rev()).collect())
    }
}

impl SavedAddress {
    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        Some(Self {
            address: Address::from_answer(answer)?,
            message: answer.read(RTM_NEWADDR)?,
        })
    }

    /// Returns a request that adds the address again. The kernel performs duplicate address
    /// detection only if it had not ended for the address.
    pub fn addition(&self) -> Request {
        let is_pending = self.address.is_tentative;
        let dad = if is_pending { Dad::Perform } else { Dad::Skip };
        self.request(self.message.clone(), dad)
    }

    /// Returns a request that adds the address to the link with this index, and with it the route to
    /// its network, which may have been left to another program (`noprefixroute`).
    pub fn addition_to(&self, link: u32) -> Request {
        let mut message = self.message.clone();
        message.header.index = link;
        for attribute in &mut message.attributes {
            if let AddressAttribute::Flags(flags) = attribute {
                flags.remove(AddressFlags::Noprefixroute);
            }
        }
        self.request(message, Dad::Perform)
    }

    fn request(&self, mut message: AddressMessage, dad: Dad) -> Request {
        // The kernel ignores flags that are only a state.
        if dad == Dad::Skip && self.address.address.is_ipv6() {
            message.header.flags |= AddressHeaderFlags::Nodad;
            for attribute in &mut message.attributes {
                if let AddressAttribute::Flags(flags) = attribute {
                    *flags |= AddressFlags::Nodad;
                }
            }
        }
        let operation = format!("add address {}", self.address.address);
        Request::create(operation, RTM_NEWADDR, &message)
    }
}

impl From<SavedAddress> for Vec<u8> {
    fn from(address: SavedAddress) -> Self {
        Message::new(RTM_NEWADDR, &address.message).body
    }
}

impl TryFrom<Vec<u8>> for SavedAddress {
    type Error = &'static str;

    fn try_from(bytes: Vec<u8>) -> Result<Self, Self::Error> {
        let answer = Message::new(RTM_NEWADDR, &Bytes(bytes));
        Self::from_answer(&answer).ok_or("the bytes describe no address")
    }
}
