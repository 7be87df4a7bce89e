//! Limits the traffic of links to rates and bursts, by qdiscs.
//!
//! Packets queue where they leave into a veth pair ([`LinkEgress`]): packets to a container at the
//! host's end, packets from it at its own end. The Go plugin `bandwidth` redirects packets from a
//! container to an ifb device instead; [`stop_redirecting`] ends that.
//!
//! This crate compares every wanted setting with the kernel's setting and changes only what
//! differs. It also replaces and removes TBFs of the Go plugin `bandwidth`
//! (containernetworking/plugins). Identifiers in this crate call this plugin "reference". Settings
//! of other programs stay as they are.
//!
//! This crate does not know the owner of a link or the source of a rate.

mod counted;
mod error;
mod limit;
mod link_egress;
mod probe;
mod queue;
mod redirection;
mod reference;
mod traffic;
mod tree;

pub use counted::{CountedLimit, counted_limits};
pub use error::{Error, lacks, module};
pub use limit::{BitsPerSecond, Burst, Limit, OutOfRange};
pub use link_egress::{InstalledQdiscs, LinkEgress};
pub use probe::missing;
pub use redirection::{redirects, stop_redirecting};
pub use traffic::{Case, End, Traffic};
