//! The kernel's replies about nf_tables.

#![no_main]
#![allow(
    dead_code,
    unused_imports,
    reason = "a target uses of the modules what reads"
)]

#[path = "../../../crates/nft/src/connection.rs"]
mod connection;
#[path = "../../../crates/nft/src/conntrack.rs"]
mod conntrack;
#[path = "../../../crates/nft/src/deletion.rs"]
mod deletion;
#[path = "../../../crates/nft/src/element.rs"]
mod element;
#[path = "../../../crates/nft/src/error.rs"]
mod error;
#[path = "../../../crates/nft/src/expression.rs"]
mod expression;
#[path = "../../../crates/nft/src/field.rs"]
mod field;
#[path = "../../../crates/nft/src/held.rs"]
mod held;
#[path = "../../../crates/nft/src/limit.rs"]
mod limit;
#[path = "../../../crates/nft/src/message.rs"]
mod message;
#[path = "../../../crates/nft/src/raw.rs"]
mod raw;
#[path = "../../../crates/nft/src/repair.rs"]
mod repair;
#[path = "../../../crates/nft/src/reply.rs"]
mod reply;
#[path = "../../../crates/nft/src/rule.rs"]
mod rule;
#[path = "../../../crates/nft/src/ruleset.rs"]
mod ruleset;
#[path = "../../../crates/nft/src/socket.rs"]
mod socket;
#[path = "../../../crates/nft/src/table.rs"]
mod table;
#[path = "../../../crates/nft/src/trace.rs"]
mod trace;
#[path = "../../../crates/nft/src/tracked.rs"]
mod tracked;

use std::panic;

use libfuzzer_sys::fuzz_target;
use netlink_packet_core::{NetlinkBuffer, NetlinkMessage, NetlinkPayload, Parseable as _};

use reply::Reply;

fuzz_target!(|input: &[u8]| {
    element::comment_of(input);
    let Ok(buffer) = NetlinkBuffer::new_checked(&input) else {
        return;
    };
    // The library does not check attributes inside expressions and panics on truncated ones, which
    // only the kernel could send. Our code must accept everything that the library accepts.
    panic::set_hook(Box::new(|_| {}));
    let parse = || NetlinkMessage::<Reply>::parse(&buffer);
    let Ok(Ok(message)) = panic::catch_unwind(parse) else {
        return;
    };
    if let NetlinkPayload::InnerMessage(reply) = message.payload {
        for element in connection::read_elements("holders", &reply) {
            let _ = (element.to_string(), element.chain());
        }
    }
});
