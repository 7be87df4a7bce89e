//! The function that the fuzz target `nft_reply` calls.

use netlink::Message;

use crate::comment::comment_of;
use crate::elements;
use crate::raw::RawMessage;
use crate::required::Effect;

/// Passes `bytes` to the parsers of the kernel's answers; none of them may panic. The parsers read
/// `bytes` as the comment of an element, as the expressions of a rule, and as a message about
/// elements of a set. The first two bytes of the message are its type.
pub fn read_reply(bytes: &[u8]) {
    comment_of(bytes);
    Effect::read(bytes);
    let Some((kind, payload)) = bytes.split_first_chunk() else {
        return;
    };
    let message = Message {
        kind: u16::from_ne_bytes(*kind),
        flags: 0,
        body: payload.to_vec(),
    };
    if let Some(reply) = RawMessage::read(&message) {
        for element in elements::read_elements("holders", &reply) {
            let _ = (element.to_string(), element.chain());
        }
    }
}
