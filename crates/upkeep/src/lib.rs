//! Keeps a node in order: proves which attachments are gone and removes them, and restores rules
//! that a reload of the host's firewall removed.

mod deletion_check;
mod deletions;
mod element_cache;
mod gc;
mod leftover;
mod liveness;
mod ports;
mod reload;
mod unlimited;
mod uplinks;

pub use deletion_check::MissingObjects;
pub use deletions::{DeletionMonitor, Deletions};
pub use element_cache::{ElementCache, MissingElements};
pub use firewall::follow as watch_firewalld;
pub use gc::{Removal, judge, read_node, remove, remove_leftover};
pub use leftover::Leftover;
pub use liveness::{Candidate, Liveness, UnprovenReason, liveness};
pub use nft::Notification;
pub use ports::{Renamed, UnknownPort};
pub use reload::{Outcome, Reloads, follow_firewalld, reload, reload_each};
pub use unlimited::{PodName, unlimited};
pub use uplinks::{Uplink, Uplinks};
