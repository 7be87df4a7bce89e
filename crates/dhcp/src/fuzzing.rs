//! Everything that the daemon reads from outside, for the fuzzer.

use crate::daemon::takeover;
use crate::lease::Lease;
use crate::record::Record;
use crate::reply::Reply;
use crate::wire::Request;

/// Reads a frame, as from a network with hostile hosts. Returns the lease in it.
pub fn read_frame(frame: &[u8]) -> Option<Lease> {
    let reply = Reply::read(frame)?;
    drop(reply.reason());
    Lease::read(&reply).ok()
}

/// Reads a request of a client, a record and a cached attachment.
pub fn read_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    drop(serde_json::from_str::<Request>(&text));
    drop(serde_json::from_str::<Record>(&text));
    drop(takeover::read(bytes));
}
