//! Network namespaces: opens them, runs work inside them, and accesses their sysctls.
//!
//! This crate does not know the work or the purpose of a sandbox.

mod error;
mod namespace;
mod sysctl;

pub use error::Error;
pub use namespace::Netns;
pub use sysctl::Sysctl;
