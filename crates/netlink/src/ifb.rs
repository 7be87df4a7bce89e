//! ifb devices: links that queue packets redirected from other links.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use nix::libc::RTM_NEWLINK;

use crate::connection::Connection;
use crate::error::Error;
use crate::link::Link;
use crate::links::{first_link, link_named};
use crate::mac::MacAddress;
use crate::message::Message;
use crate::request::Request;

/// An ifb device to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ifb<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its MAC: udev rewrites one that the kernel chose.
    pub mac: MacAddress,
    /// MTU in bytes.
    pub mtu: u32,
}

impl Connection {
    /// Creates the device, down, and returns it. Equivalent to `ip link add NAME address MAC mtu
    /// MTU type ifb`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::is_already_exists`] holds if the name is taken,
    /// [`Error::is_not_supported`] if the kernel lacks ifb.
    pub fn add_ifb(&self, ifb: &Ifb<'_>) -> Result<Link, Error> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(ifb.name.to_owned()),
            LinkAttribute::Address(ifb.mac.0.to_vec()),
            LinkAttribute::Mtu(ifb.mtu),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Ifb)]),
        ];
        let operation = format!("create ifb {}", ifb.name);
        let create = Request::change(
            operation.clone(),
            Message::new(RTM_NEWLINK, &message),
            NLM_F_CREATE | NLM_F_EXCL,
        );
        let requests = vec![create, link_named(ifb.name)];
        first_link(operation, &self.transport.execute(&requests)?)
    }
}
