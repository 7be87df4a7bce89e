//! The attachments that the Go plugins made: the marks of their chains and rules in firewalls, and
//! which of the attachments are live.

mod living;
mod mark;

pub use living::Living;
pub use mark::Mark;
