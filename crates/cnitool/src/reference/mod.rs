//! The attachments of the reference: what marks their remnants in firewalls, and which of them live.

mod living;
mod mark;

pub use living::Living;
pub use mark::Mark;
