//! Keeps a node in order: proves which attachments are gone and removes them, and restores rules
//! that a reload of the host's firewall removed.

mod element_cache;
mod gc;
mod judge;
mod leftover;
mod liveness;
mod loss;
mod ports;
mod reload;
mod unlimited;
mod uplinks;

pub use element_cache::{ElementCache, MissingElements};
pub use firewall::follow as hear_firewalld;
pub use gc::{Removal, judge, read_node, remove, remove_leftover};
pub use judge::Loss;
pub use leftover::Leftover;
pub use liveness::{Candidate, Liveness, Unseen, liveness};
pub use loss::{Deletions, Losses};
pub use nft::Notification;
pub use ports::{Renamed, UnknownPort};
pub use reload::{Outcome, Reloads, follow_firewalld, reload, reload_each};
pub use unlimited::{PodName, unlimited};
pub use uplinks::{Uplink, Uplinks};
