//! The kernel's netlink replies about links, addresses, routes and qdiscs.

#![no_main]
#![allow(
    dead_code,
    unused_imports,
    reason = "a target uses of the modules what reads"
)]

#[path = "../../../crates/netlink/src/address.rs"]
mod address;
#[path = "../../../crates/netlink/src/bucket.rs"]
mod bucket;
#[path = "../../../crates/netlink/src/conf.rs"]
mod conf;
#[path = "../../../crates/netlink/src/connection.rs"]
mod connection;
#[path = "../../../crates/netlink/src/error.rs"]
mod error;
#[path = "../../../crates/netlink/src/filter.rs"]
mod filter;
#[path = "../../../crates/netlink/src/forwarding.rs"]
mod forwarding;
#[path = "../../../crates/netlink/src/ifb.rs"]
mod ifb;
#[path = "../../../crates/netlink/src/link.rs"]
mod link;
#[path = "../../../crates/netlink/src/mac.rs"]
mod mac;
#[path = "../../../crates/netlink/src/message.rs"]
mod message;
#[path = "../../../crates/netlink/src/monitor.rs"]
mod monitor;
#[path = "../../../crates/netlink/src/qdisc.rs"]
mod qdisc;
#[path = "../../../crates/netlink/src/removal.rs"]
mod removal;
#[path = "../../../crates/netlink/src/request.rs"]
mod request;
#[path = "../../../crates/netlink/src/route.rs"]
mod route;
#[path = "../../../crates/netlink/src/transport.rs"]
mod transport;
#[path = "../../../crates/netlink/src/veth.rs"]
mod veth;
#[path = "../../../crates/netlink/src/vlan.rs"]
mod vlan;

use libfuzzer_sys::fuzz_target;
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::link::LinkMessage;
use nix::libc::{RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNETCONF, RTM_NEWROUTE, RTM_NEWTFILTER};

fuzz_target!(|input: &[u8]| {
    transport::extended_message(input);
    let messages = transport::parse(input).unwrap_or_default();
    for message in messages {
        let NetlinkPayload::InnerMessage(message) = message.payload else {
            continue;
        };
        message.subject();
        link::Link::from_answer(&message);
        let port = message.read::<LinkMessage>(RTM_NEWLINK);
        port.map(|it| vlan::PortVlans::from_message(&it));
        let address = message.read(RTM_NEWADDR);
        address.map(|it| address::Address::from_message(&it));
        let route = message.read(RTM_NEWROUTE);
        route.map(|it| route::Route::from_message(&it));
        qdisc::Qdisc::from_answer(&message);
        let filter = message.read(RTM_NEWTFILTER);
        filter.map(|it| filter::HeldFilter::from_message(&it));
        message.read::<forwarding::Netconf>(RTM_NEWNETCONF);
    }
});
