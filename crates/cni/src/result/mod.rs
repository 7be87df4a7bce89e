//! The result of an ADD. In memory, it has the form of the newest version of the specification.

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
