//! Sets rates and bursts as qdiscs.
//!
//! Packets that leave by a link queue in front of the link ([`LinkEgress`]). Ingress packets cannot
//! queue at a link, so they are redirected to an ifb device ([`LinkIngress`]). They queue at the
//! egress of the ifb and then continue as ingress packets of the link.
//!
//! This crate compares every wanted setting with the kernel's setting and changes only what
//! differs. Settings of other programs stay as they are. "The reference" is the plugin `bandwidth`
//! of containernetworking/plugins.
//!
//! This crate does not know the owner of a link or the source of a rate.

mod counted;
mod error;
mod limit;
mod link_egress;
mod link_ingress;
mod probe;
mod queue;
mod reference;
mod traffic;
mod tree;

pub use counted::{CountedLimit, counted_limits};
pub use error::{Error, lacks, module};
pub use limit::{BitsPerSecond, Burst, Limit, OutOfRange};
pub use link_egress::{Held, LinkEgress};
pub use link_ingress::{Hook, LinkIngress};
pub use probe::missing;
pub use traffic::{Case, Traffic};
