//! Options of the messages to a server.

use serde::{Deserialize, Serialize};

/// Options of the messages to a server, besides those that the protocol needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Number and value of each option for the server.
    pub provided: Vec<(u8, Vec<u8>)>,
    /// Numbers of the options that the server is asked for.
    pub requested: Vec<u8>,
}
