//! The entry of the fuzz target `nft_reply`.

use crate::comment::comment_of;
use crate::elements;
use crate::raw::RawMessage;
use crate::standing::Deed;

/// Parses `bytes` as a comment, as the expressions of a rule, and as a message (type and content)
/// in which the kernel describes elements of a set.
pub fn read_reply(bytes: &[u8]) {
    comment_of(bytes);
    Deed::read(bytes);
    let Some((kind, payload)) = bytes.split_first_chunk() else {
        return;
    };
    if let Some(reply) = RawMessage::read(u16::from_ne_bytes(*kind), payload) {
        for element in elements::read_elements("holders", &reply) {
            let _ = (element.to_string(), element.chain());
        }
    }
}
