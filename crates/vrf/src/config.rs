//! The configuration: the plugin's keys.

use cni::{Error, InterfaceName, Network, keys};

use crate::RawConfig;

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Name of the VRF link in the sandbox.
    pub name: InterfaceName,
    /// Number of its routing table; `None` for any.
    pub table: Option<u32>,
}

impl Config {
    /// Parses the configuration.
    ///
    /// # Errors
    /// Code 7: a value is invalid; the error names the key.
    pub fn parse(network: &Network) -> Result<Self, Error> {
        let raw: RawConfig = network.config()?;
        if raw.vrfname.is_empty() {
            return Err(Error::invalid("vrfname", "missing; the VRF needs a name"));
        }
        Ok(Self {
            name: keys::parsed(&raw.vrfname, "vrfname")?,
            table: Some(raw.table).filter(|it| *it != 0),
        })
    }
}
