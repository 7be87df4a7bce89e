//! The key `metrics.listen`: the address of the HTTP server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, derive_more::Display)]
#[serde(try_from = "String")]
pub(crate) enum Address {
    /// A TCP address, written `ADDRESS:PORT`.
    Tcp(SocketAddr),
    /// The path of a Unix socket, written `unix:/PATH`.
    #[display("unix:{}", _0.display())]
    Unix(PathBuf),
}

impl Address {
    /// Returns whether only processes of this node can reach the address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl Default for Address {
    fn default() -> Self {
        Self::Tcp((Ipv4Addr::LOCALHOST, 9799).into())
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(format!("{text:?} is no absolute path")),
            None => text
                .parse()
                .map(Self::Tcp)
                .map_err(|_| format!("{text:?} is neither ADDRESS:PORT nor unix:/PATH")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, String> {
        text.to_owned().try_into()
    }

    #[test]
    fn only_loopback_and_unix_addresses_are_local() {
        for local in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "unix:/run/agent"] {
            assert!(parse(local).unwrap().is_local(), "{local}");
        }
        for remote in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            assert!(!parse(remote).unwrap().is_local(), "{remote}");
        }
        for wrong in ["", "9799", "localhost:1", "unix:run", "127.0.0.1"] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(wrong));
        }
    }
}
