//! The entry of the fuzz target `netlink_reply`.

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::link::LinkMessage;
use nix::libc::{RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNETCONF, RTM_NEWROUTE, RTM_NEWTFILTER};

use crate::address::Address;
use crate::filter::HeldFilter;
use crate::forwarding::Netconf;
use crate::link::Link;
use crate::qdisc::Qdisc;
use crate::route::Route;
use crate::transport;
use crate::vlan::PortVlans;

/// Reads `bytes` as a reply of the kernel about each kind of object.
pub fn read_reply(bytes: &[u8]) {
    transport::extended_message(bytes);
    for message in transport::parse(bytes).unwrap_or_default() {
        let NetlinkPayload::InnerMessage(message) = message.payload else {
            continue;
        };
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
