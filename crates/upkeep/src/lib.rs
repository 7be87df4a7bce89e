//! Keeps a node in order: proves which attachments are gone and removes them, and restores rules
//! that a reload of the host's firewall removed.

mod gc;
mod life;
mod reload;

pub use gc::{Collect, gc};
pub use life::{Life, Remains, life};
pub use reload::{follow_firewalld, reload};
