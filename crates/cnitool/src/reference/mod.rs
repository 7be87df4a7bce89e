//! Rules of the reference plugins, the Go plugins (containernetworking/plugins): the marks that
//! identify the attachment of a chain or rule, and which attachments are live.

mod living;
mod mark;

pub use living::Living;
pub use mark::Mark;
