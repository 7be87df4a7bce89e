//! Network namespaces: opening one, running work inside it, and its sysctls.
//!
//! This crate does not know what work that is, nor why a sandbox exists.

mod error;
mod namespace;
mod sysctl;

pub use error::Error;
pub use namespace::Netns;
pub use sysctl::{Outcome, Sysctl};
