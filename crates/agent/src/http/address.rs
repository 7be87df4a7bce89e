//! The key `listen`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// `ADDRESS:PORT`
    Tcp(SocketAddr),
    /// `unix:/PATH`
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

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Some(path).filter(|it| it.starts_with('/'));
            let path = path.ok_or_else(|| format!("metrics.listen: {text:?} is no absolute path"));
            return path.map(|it| Self::Unix(it.into()));
        }
        let address = text.parse().map(Self::Tcp);
        address
            .map_err(|_| format!("metrics.listen: {text:?} is neither ADDRESS:PORT nor unix:/PATH"))
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_unix_addresses_are_local() {
        for local in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "unix:/run/agent"] {
            assert!(local.parse::<Address>().unwrap().is_local(), "{local}");
        }
        for remote in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            assert!(!remote.parse::<Address>().unwrap().is_local(), "{remote}");
        }
        for wrong in ["", "9799", "localhost:1", "unix:run", "127.0.0.1"] {
            let error = wrong.parse::<Address>().unwrap_err();
            assert!(error.contains("metrics.listen") && error.contains(wrong));
        }
    }
}
