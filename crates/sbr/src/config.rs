//! The configuration: the plugin's keys.

use std::net::IpAddr;

use attach::MAIN_TABLE;
use cni::result::Route;
use cni::{AddResult, Error, Network, keys};

use crate::RawConfig;

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Config {
    /// The rules look up the table with this number, which another program fills.
    Shared(u32),
    /// Each address gets a table of its own.
    Own {
        /// Gateways in place of those in the result, at most one for each family.
        gateways: Vec<IpAddr>,
        /// Which routes of the interface the table `main` keeps.
        main: MainTable,
    },
}

/// Which routes of the interface the table `main` keeps. It always keeps those to link-local
/// addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MainTable {
    /// No other routes.
    Nothing,
    /// Routes without a gateway. Those to the subnets of the addresses get the address as source.
    Subnets,
}

impl Config {
    /// Parses the configuration.
    ///
    /// # Errors
    /// Code 7: a value is invalid; the error names the key.
    pub fn parse(network: &Network) -> Result<Self, Error> {
        let raw: RawConfig = network.config()?;
        let gateways = gateways(&raw)?;
        match raw.table {
            Some(0) => {
                let reason = "0 is no table; numbers are 1 to 4294967295";
                Err(Error::invalid("table", reason))
            }
            Some(table) => Ok(Self::Shared(table)),
            None => Ok(Self::Own {
                gateways,
                main: if raw.add_source_hints {
                    MainTable::Subnets
                } else {
                    MainTable::Nothing
                },
            }),
        }
    }

    /// Returns `result` with the default routes that ADD makes in place of those that it removes,
    /// because CHECK of the other plugins compares routes with the result.
    pub(crate) fn reported(&self, result: &AddResult) -> AddResult {
        let mut reported = result.clone();
        let Self::Own { gateways, .. } = self else {
            return reported;
        };
        let of_main = |it: &&mut Route| matches!(it.table, None | Some(0 | MAIN_TABLE));
        let defaults = reported.routes.iter_mut().filter(of_main);
        for route in defaults.filter(|it| it.dst.prefix() == 0) {
            let is_same = |it: &&IpAddr| it.is_ipv4() == route.dst.is_ipv4();
            if let Some(gateway) = gateways.iter().find(is_same) {
                let gw = Some(*gateway);
                *route = Route {
                    gw,
                    ..Route::to(route.dst)
                };
            }
        }
        reported
    }
}

/// Returns a message for each key that has no effect.
pub(crate) fn warnings(raw: &RawConfig) -> Vec<String> {
    let keys = [
        ("gateways", !raw.gateways.is_empty()),
        ("addSourceHints", raw.add_source_hints),
    ];
    let idle = keys.into_iter().filter(|it| it.1 && raw.table.is_some());
    let message = |key| {
        format!(
            "{key} has no effect beside table: sbr then adds only rules; remove one of the keys"
        )
    };
    idle.map(|(key, _)| message(key)).collect()
}

fn gateways(raw: &RawConfig) -> Result<Vec<IpAddr>, Error> {
    let mut gateways: Vec<IpAddr> = Vec::new();
    for text in &raw.gateways {
        let gateway = keys::parsed::<IpAddr>(text, "gateways")?.to_canonical();
        let is_same = |it: &&IpAddr| it.is_ipv4() == gateway.is_ipv4();
        if let Some(other) = gateways.iter().find(is_same) {
            let reason = format!("{other} and {gateway}: only one for each family is possible");
            return Err(Error::invalid("gateways", reason));
        }
        gateways.push(gateway);
    }
    Ok(gateways)
}
