//! The entry of the fuzz target `nft_reply`.

use std::panic;

use crate::element;
use crate::elements;
use crate::reply::Reply;

/// Reads `bytes`, a message's type and content, as a reply of the kernel about elements of a set.
pub fn read_reply(bytes: &[u8]) {
    element::comment_of(bytes);
    let Some((kind, payload)) = bytes.split_first_chunk() else {
        return;
    };
    let kind = u16::from_ne_bytes(*kind);
    // The library panics on attributes of expressions that are cut short. Only the kernel can send
    // them. Our code must read all that the library accepts.
    panic::set_hook(Box::new(|_| {}));
    let parse = || Reply::read(kind, payload);
    if let Ok(Ok(reply)) = panic::catch_unwind(parse) {
        for element in elements::read_elements("holders", &reply) {
            let _ = (element.to_string(), element.chain());
        }
    }
}
