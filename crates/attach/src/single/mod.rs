//! Interfaces without a pair: links that live in a sandbox alone, such as macvlan links.
//!
//! A plugin parses its configuration to a [`Single`], the desired state, in
//! [`SandboxLink::parse`]. [`add()`] applies it, [`check()`] compares the sandbox with it. [`del()`]
//! and [`gc()`] remove the link and then the lease. A [`Witness`](crate::Witness) stands for the
//! link on the host.

mod add;
mod check;
mod del;
mod desired;
mod made;
mod tap;

pub use add::add;
pub use check::{check, status};
pub use del::{del, gc};
pub use desired::{Addresses, Kind, Mac, Parent, Place, SandboxLink, Single, lacks, mtu};
pub use tap::NewTap;
