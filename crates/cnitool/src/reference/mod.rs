//! Rules of the reference plugins, the Go plugins (containernetworking/plugins): the marks that
//! identify the attachment of a chain or rule, and which attachments are live.

mod live;
mod mark;

pub use live::LiveAttachments;
pub use mark::Mark;
