//! The entry of the fuzz target `nft_reply`.

use std::panic;

use netlink_packet_core::{NetlinkBuffer, NetlinkMessage, NetlinkPayload, Parseable as _};

use crate::element;
use crate::elements;
use crate::reply::Reply;

/// Reads `bytes` as a reply of the kernel about elements of a set.
pub fn read_reply(bytes: &[u8]) {
    element::comment_of(bytes);
    let Ok(buffer) = NetlinkBuffer::new_checked(&bytes) else {
        return;
    };
    // The library panics on attributes of expressions that are cut short. Only the kernel can send
    // them. Our code must read all that the library accepts.
    panic::set_hook(Box::new(|_| {}));
    let parse = || NetlinkMessage::<Reply>::parse(&buffer);
    let Ok(Ok(message)) = panic::catch_unwind(parse) else {
        return;
    };
    if let NetlinkPayload::InnerMessage(reply) = message.payload {
        for element in elements::read_elements("holders", &reply) {
            let _ = (element.to_string(), element.chain());
        }
    }
}
