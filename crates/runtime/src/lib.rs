//! What a container runtime does with plugins, compatible with libcni: reads configuration lists,
//! calls the plugins of a list, and caches results.

mod cache;
mod call;
mod chain;
mod conflist;
mod held;
mod parts;
mod sandbox;

pub use cache::{Cache, Entry};
pub use chain::{Abilities, Chain, Directories, abilities, ask_abilities};
pub use conflist::{Conflist, PluginConfig};
pub use held::{HeldEntry, Replacement};
pub use parts::{candidates, paths_in, with_parts};
pub use sandbox::{Arguments, Sandbox, may_exist};
