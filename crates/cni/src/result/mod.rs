//! The result of an ADD. In memory, it is always in the newest version.

mod read;
mod spelling;
mod values;
mod write;

pub use read::read;
pub use values::{AddResult, Dns, Interface, IpConfig, Route};

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
