//! Keeps a node in order: proves which attachments are gone and removes them, and restores rules
//! that a reload of the host's firewall removed.

mod gc;
mod life;
mod loss;
mod reload;
mod uplinks;

pub use gc::{Removal, judge, read_node, remove};
pub use life::{Life, Remains, Unseen, life};
pub use loss::{Loss, Losses, Suspicion};
pub use nft::Heard;
pub use reload::{follow_firewalld, hear_firewalld, reload, reload_each};
pub use uplinks::{Uplink, Uplinks};
