//! The entry of the fuzz target `netlink_reply`.

use netlink_packet_route::link::LinkMessage;
use nix::libc::{RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNETCONF, RTM_NEWROUTE, RTM_NEWTFILTER};

use crate::address::Address;
use crate::filter::HeldFilter;
use crate::forwarding::Netconf;
use crate::link::Link;
use crate::message::Message;
use crate::qdisc::Qdisc;
use crate::route::Route;
use crate::socket::{self, Content};
use crate::vlan::PortVlans;

/// Reads `bytes` as a reply of the kernel about each kind of object.
pub fn read_reply(bytes: &[u8]) {
    socket::extended_message(bytes);
    for received in socket::parse(bytes).unwrap_or_default() {
        let Content::Object(body) = received.content else {
            continue;
        };
        let message = Message::received(received.header.kind, body);
        message.subject();
        Link::from_answer(&message);
        let port = message.read::<LinkMessage>(RTM_NEWLINK);
        port.map(|it| PortVlans::from_message(&it));
        let address = message.read(RTM_NEWADDR);
        address.map(|it| Address::from_message(&it));
        let route = message.read(RTM_NEWROUTE);
        route.map(|it| Route::from_message(&it));
        Qdisc::from_answer(&message);
        let filter = message.read(RTM_NEWTFILTER);
        filter.map(|it| HeldFilter::from_message(&it));
        message.read::<Netconf>(RTM_NEWNETCONF);
    }
}
