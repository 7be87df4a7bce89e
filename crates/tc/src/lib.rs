//! A rate and a burst become queueing disciplines.
//!
//! What leaves by a link waits in front of it ([`Leaving`]). What arrives cannot wait where
//! it arrives, so it is sent to an intermediate functional block ([`Arriving`]), leaves by
//! that, where it can, and then arrives after all.
//!
//! Everything is compared with what is there, and only what differs is sent. What somebody
//! else put on a link stays as it is.
//!
//! This crate does not know whose links they are, nor where a rate comes from.

mod arriving;
mod error;
mod leaving;
mod limit;
mod probe;
mod reference;
mod traffic;

pub use arriving::{Arriving, Hook};
pub use error::{Error, Module};
pub use leaving::Leaving;
pub use limit::{BitsPerSecond, Burst, Limit, OutOfRange};
pub use probe::missing;
pub use traffic::{Case, Traffic};
