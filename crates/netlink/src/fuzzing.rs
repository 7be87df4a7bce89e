//! The function that the fuzz target `netlink_reply` calls.

use crate::{
    Address, Content, CountedQdisc, HeldFilter, Link, LinkCounters, Neighbour, PortVlans, Qdisc,
    Route, Rule, SavedAddress, SavedRoute, forwarding, socket,
};

/// Parses `bytes` as messages of the kernel, and each message as every kind of object. No parser
/// may panic.
pub fn read_reply(bytes: &[u8]) {
    socket::extended_message(bytes);
    for received in socket::parse(bytes).unwrap_or_default() {
        let Content::Object(message) = received.content else {
            continue;
        };
        message.subject();
        Link::from_answer(&message);
        PortVlans::read(&message);
        Address::from_answer(&message);
        Route::from_answer(&message);
        Rule::from_answer(&message);
        if let Some(route) = SavedRoute::from_answer(&message) {
            route.in_table(u32::MAX).removal(1);
            route.with_addresses(|it| it).addition();
            route.restoration(1);
        }
        if let Some(address) = SavedAddress::from_answer(&message) {
            address.addition();
        }
        Neighbour::from_answer(&message);
        Qdisc::from_answer(&message);
        CountedQdisc::from_answer(&message);
        LinkCounters::from_answer(&message);
        HeldFilter::from_answer(&message);
        forwarding::is_on(&message);
    }
}
