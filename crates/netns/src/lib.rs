//! Network namespaces: opens them, runs work inside them, and accesses their sysctls.
//!
//! This crate knows neither the work that runs inside a namespace nor the purpose of the namespace.

mod error;
mod namespace;
mod sysctl;
mod tasks;

pub use error::Error;
pub use namespace::{Netns, is_away};
pub use sysctl::Sysctl;
pub use tasks::{kept, tasks};
